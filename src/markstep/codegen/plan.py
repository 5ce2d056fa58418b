"""Cuts a program into pieces: graphs for the compiler, and calls that the host makes between them.

Operators that the compiler cannot take (fused optimizers, custom operators, numbers that change every step in an operator
whose arithmetic is not known here) stay single calls, so that one of them costs a little speed and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from markstep.codegen import promoted, randomness
from markstep.record.program import Call, Meta, New, Program, Ref, Scalar, leaves
from markstep.record.schema import draws, facts

_MIN_GRAPH = 3
_HOST_NAMES = ("aten::_fused_adam", "aten::_fused_sgd", "aten::_fused_adagrad", "aten::mkldnn_rnn_layer")
_NAMESPACES = {"aten", "prims"}
_SCATTERS = {
    "index_add", "index_put", "index_put_impl", "index_copy", "index_reduce", "index_fill", "scatter", "scatter_add",
    "scatter_reduce", "masked_scatter", "put",
}  # fmt: skip


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

    @property
    def scalar_types(self) -> list[type]:
        """Python types of the numbers that the program takes, in its order."""
        calls = self.program.calls
        return [v.type for c in calls for v in leaves((c.args, tuple(c.kwargs.values()))) if type(v) is Scalar]


def make_plan(program: Program, rng: str, host: frozenset[str] = frozenset()) -> Plan:
    """Decides what becomes part of which graph; operators named in `host` do not."""
    drawn = randomness.assign(program, rng)
    scalar_base, count = {}, 0
    for i, call in enumerate(program.calls):
        scalar_base[i] = count
        count += _numbers(call)
    runs: list[tuple[bool, list[int]]] = []
    for i in program.pending:
        call = program.calls[i]
        settled = i in drawn.settled
        if settled and facts(call.op).rng_state:
            continue
        graph = call.op.name() not in host and _is_compilable(call, settled) and not _reads_what_it_scatters(program, i)
        if runs and runs[-1][0] == graph:
            runs[-1][1].append(i)
        else:
            runs.append((graph, [i]))
    # A short graph is not worth its overhead; but the host would draw anew what has been drawn, or hashed, already.
    runs = _merge([(g and (len(p) >= _MIN_GRAPH or not drawn.settled.isdisjoint(p)), p) for g, p in runs])
    return Plan(program, tuple(_pieces(program, runs, scalar_base)), drawn.hashed, drawn.drawn, scalar_base)


def _numbers(call: Call) -> int:
    return sum(type(v) is Scalar for v in leaves((call.args, tuple(call.kwargs.values()))))


def _is_compilable(call: Call, randomness_settled: bool) -> bool:
    if call.op.namespace not in _NAMESPACES or call.op._schema.name.startswith(_HOST_NAMES):
        return False
    if draws(call.op, call.args, call.kwargs) and not randomness_settled:
        return False
    if (_numbers(call) and not promoted.is_known(call)) or _writes_twice(call):
        return False
    metas = [v.meta for v in leaves((call.args, tuple(call.kwargs.values()), call.outs)) if isinstance(v, (Ref, New))]
    return not any(m[5] or m[6] or m[3].is_complex for m in metas)


def _writes_twice(call: Call) -> bool:
    """Does an operator on lists update one storage several times? TorchInductor applies only one of the updates."""
    known = facts(call.op)
    written = [a for i, a in enumerate(call.args) if i in known.writes and isinstance(a, list)]
    slots = [r.slot for r in leaves(written) if type(r) is Ref]
    return len(slots) != len(set(slots))


def _reads_what_it_scatters(program: Program, position: int) -> bool:
    """Does a scatter write into a storage that its other arguments were computed from?

    TorchInductor may compute them inside the loop that scatters, where they see values that are updated already.
    """
    call = program.calls[position]
    if call.op._schema.name.removeprefix("aten::").strip("_") not in _SCATTERS or type(call.args[0]) is not Ref:
        return False
    target = call.args[0].slot
    need = {r.slot for r in leaves((call.args[1:], tuple(call.kwargs.values()))) if type(r) is Ref}
    for i in reversed([i for i in program.pending if i < position]):
        earlier = program.calls[i]
        if not need.isdisjoint(earlier.writes) or any(n.slot in need for n in earlier.creates):
            need.update(earlier.reads)
    return target in need


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
