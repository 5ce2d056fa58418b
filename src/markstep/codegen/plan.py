"""Cuts a program into pieces: graphs for the compiler, and calls that the host makes between them.

Operators that the compiler cannot take (fused optimizers, custom operators, numbers that change every step in an operator
whose arithmetic is not known here) stay single calls, so that one of them costs a little speed and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from markstep.codegen import promoted, randomness
from markstep.record.program import Call, Meta, New, Program, Ref, Scalar, leaves
from markstep.record.schema import facts

_MIN_GRAPH = 3
_HOST_NAMES = ("aten::_fused_adam", "aten::_fused_sgd", "aten::_fused_adagrad", "aten::mkldnn_rnn_layer")
_NAMESPACES = {"aten", "prims"}


@dataclass(frozen=True)
class Piece:
    """A run of calls.

    Attributes:
        positions: their places in the program.
        graph: compiled, or made one by one by the host.
        inputs: for a graph: slots that exist before it, with the views it takes of each.
        scalars: for a graph: numbers of the program that it takes, by their place in the program's order.
        outputs: slots it allocates that are needed after it.
        mutated: slots from before that it writes to.
        release: slots that nobody needs after it.
    """

    positions: tuple[int, ...]
    graph: bool
    inputs: dict[int, tuple[Meta, ...]] = field(default_factory=dict)
    scalars: tuple[int, ...] = ()
    outputs: tuple[New, ...] = ()
    mutated: frozenset[int] = frozenset()
    release: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan:
    """All pieces of a program, in order, and how its random numbers are made.

    Attributes:
        keys: hashed random calls: position in the program to the number of its key.
        draws: positions that draw from torch's generator before everything else, in order.
        scalar_base: position of a call to the number of its first promoted scalar.
    """

    program: Program
    pieces: tuple[Piece, ...]
    keys: dict[int, int]
    draws: tuple[int, ...]
    scalar_base: dict[int, int]


def make_plan(program: Program, rng: str, host: frozenset[str] = frozenset()) -> Plan:
    """Decides what becomes part of which graph; operators named in `host` do not."""
    keys, draws = randomness.assign(program, rng)
    scalar_base, count = {}, 0
    for i, call in enumerate(program.calls):
        scalar_base[i] = count
        count += _numbers(call)
    moved = set(draws)
    runs: list[tuple[bool, list[int]]] = []
    for i in program.pending:
        call = program.calls[i]
        if i in moved and facts(call.op).rng_state:
            continue
        if facts(call.op).rng_state and keys is not None and i not in moved:
            continue  # hashed masks: the state is a matter of counting, done already
        graph = call.op.name() not in host and _is_compilable(call, i in keys or i in moved)
        if runs and runs[-1][0] == graph:
            runs[-1][1].append(i)
        else:
            runs.append((graph, [i]))
    runs = _merge([(g and len(p) >= _MIN_GRAPH, p) for g, p in runs])
    return Plan(program, tuple(_pieces(program, runs, scalar_base)), keys, draws, scalar_base)


def _numbers(call: Call) -> int:
    return sum(type(v) is Scalar for v in leaves((call.args, tuple(call.kwargs.values()))))


def _is_compilable(call: Call, randomness_settled: bool) -> bool:
    known = facts(call.op)
    if call.op.namespace not in _NAMESPACES or call.op._schema.name.startswith(_HOST_NAMES):
        return False
    if known.random and not randomness_settled:
        return False
    if _numbers(call) and not promoted.is_known(call):
        return False
    metas = [v.meta for v in leaves((call.args, tuple(call.kwargs.values()), call.outs)) if isinstance(v, (Ref, New))]
    return not any(m[5] or m[6] or m[3].is_complex for m in metas)


def _merge(runs: list[tuple[bool, list[int]]]) -> list[tuple[bool, list[int]]]:
    merged: list[tuple[bool, list[int]]] = []
    for graph, positions in runs:
        if merged and not graph and not merged[-1][0]:
            merged[-1][1].extend(positions)
        else:
            merged.append((graph, list(positions)))
    return merged


def _pieces(program: Program, runs: list[tuple[bool, list[int]]], scalar_base: dict[int, int]) -> list[Piece]:
    last_use: dict[int, int] = {}
    for number, (_, positions) in enumerate(runs):
        for i in positions:
            for slot in [
                *program.calls[i].reads,
                *(n.slot for n in program.calls[i].creates),
                *_views(program.calls[i]),
            ]:
                last_use[slot] = number
    pieces = []
    for number, (graph, positions) in enumerate(runs):
        release = tuple(s for s, n in last_use.items() if n == number and s not in program.live)
        if not graph:
            pieces.append(Piece(tuple(positions), False, release=release))
            continue
        created = {n.slot: n for i in positions for n in program.calls[i].creates}
        inputs: dict[int, list[Meta]] = {}
        writes: set[int] = set()
        scalars: list[int] = []
        for i in positions:
            call = program.calls[i]
            writes.update(w for w in call.writes if w not in created)
            scalars += range(scalar_base[i], scalar_base[i] + _numbers(call))
            for ref in leaves((call.args, tuple(call.kwargs.values()), call.outs)):
                if type(ref) is Ref and ref.slot not in created:
                    metas = inputs.setdefault(ref.slot, [])
                    if ref.meta not in metas:
                        metas.append(ref.meta)
        outputs = tuple(n for s, n in created.items() if last_use[s] > number or s in program.live)
        frozen = {s: tuple(m) for s, m in inputs.items()}
        pieces.append(Piece(tuple(positions), True, frozen, tuple(scalars), outputs, frozenset(writes), release))
    return pieces


def _views(call: Call) -> list[int]:
    return [r.slot for r in leaves(call.outs) if type(r) is Ref]
