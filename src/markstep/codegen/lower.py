"""From a piece of a program to a functional FX graph on fake tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from markstep.codegen import layout, promoted, randomness
from markstep.codegen.head import Head
from markstep.codegen.plan import Piece, Plan
from markstep.record.program import Call, Meta, New, Ref, Scalar, leaves


class NotLowerable(RuntimeError):
    """The piece holds something the compiler cannot take; the message says what."""


@dataclass(frozen=True)
class Rewrites:
    """What is computed in another way than it was recorded.

    Attributes:
        heads: loss heads of the piece.
        narrow: positions of products that are computed in bf16.
        free: slots of images whose layout may be chosen; convolutions take them with their channels last.
        measured: loss heads leave their products to the library that measures best.
    """

    heads: Sequence[Head] = ()
    narrow: frozenset[int] = frozenset()
    free: frozenset[int] = frozenset()
    measured: bool = False

    def counts(self) -> dict[str, int]:
        """Name of each pass that found something to the number of places."""
        found = {"loss_head": self.heads, "narrow_products": self.narrow, "channels_last": self.free}
        return {name: len(places) for name, places in found.items() if places}


NO_REWRITES = Rewrites()


@dataclass(frozen=True)
class Feed:
    """What a graph takes, in order.

    Attributes:
        tensors: (slot, meta) of the storages.
        scalars: numbers of the program.
        draws: positions of drawn random calls.
        keys: numbers of the keys of its hashed random calls; each is an int32 tensor of its own, so that the kernels of
            repeated layers have the same text and are compiled once.
    """

    tensors: tuple[tuple[int, Meta], ...]
    scalars: tuple[int, ...]
    draws: tuple[int, ...]
    keys: tuple[int, ...]


def feed_of(plan: Plan, piece: Piece) -> Feed:
    """The inputs of a graph piece."""
    tensors = tuple((slot, covering(metas)) for slot, metas in piece.inputs.items())
    draws = tuple(i for i in piece.positions if i in set(plan.draws))
    keys = tuple(sorted({plan.keys[i] for i in piece.positions if i in plan.keys}))
    return Feed(tensors, piece.scalars, draws, keys)


def covering(metas: Sequence[Meta]) -> Meta:
    """One view of a storage from which all the given ones can be taken."""
    if len(metas) == 1:
        return metas[0]
    if len({m[3] for m in metas}) > 1:
        raise NotLowerable("one storage is seen with several dtypes")
    low, high = min(m[2] for m in metas), max(_end(m) for m in metas)
    for m in metas:
        if m[2] == low and _end(m) == high and math.prod(m[0]) == high - low:
            return m
    first = metas[0]
    return ((high - low,), (1,), low, first[3], first[4], False, False)


def _end(meta: Meta) -> int:
    if 0 in meta[0]:
        return meta[2]
    return meta[2] + 1 + sum((n - 1) * s for n, s in zip(meta[0], meta[1], strict=True))


def build(
    plan: Plan, piece: Piece, feed: Feed, decompositions: Any, rewrites: Rewrites = NO_REWRITES
) -> tuple[torch.fx.GraphModule, list[Tensor]]:
    """Traces the piece; in-place operators and views become functional, updates of inputs end as copies into them."""
    mode = FakeTensorMode(allow_non_fake_inputs=False)
    with mode:
        example: list[Tensor] = [torch.empty_strided(m[0], m[1], dtype=m[3], device=m[4]) for _, m in feed.tensors]
        kinds = plan.scalar_types
        example += [torch.empty((), dtype=torch.float64 if kinds[k] is float else torch.int64) for k in feed.scalars]
        for i in feed.draws:
            meta = _drawn_meta(plan.program.calls[i])
            example.append(torch.empty_strided(meta[0], meta[1], dtype=meta[3], device=meta[4]))
        device = next((m[4] for _, m in feed.tensors), torch.device("cpu"))
        example += [torch.empty(randomness.KEY_SHAPE, dtype=torch.int32, device=device) for _ in feed.keys]
    replay = _replayer(plan, piece, feed, rewrites)
    with mode, torch.no_grad(), torch.fx.traceback.preserve_node_meta():
        graph = make_fx(torch.func.functionalize(replay, remove="mutations"), decompositions, "real")(*example)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph, example


def _drawn_meta(call: Call) -> Meta:
    if call.op.name() == "aten::native_dropout":
        meta = call.outs[1].meta
    elif call.writes:
        meta = next(r.meta for r in leaves(call.args) if type(r) is Ref)
    else:
        meta = call.creates[0].meta
    return (meta[0], meta[1], 0, *meta[3:])


def _replayer(plan: Plan, piece: Piece, feed: Feed, rewrites: Rewrites) -> Callable[..., list[Tensor]]:
    left_out = {i for h in rewrites.heads for i in h.inside}
    forward = {h.forward: h for h in rewrites.heads}
    backward = {i: (h, which) for h in rewrites.heads for which, i in enumerate(h.gradients) if i is not None}

    def replay(*values: Tensor) -> list[Tensor]:
        env = _Environment(rewrites.free)
        at = len(feed.tensors)
        for (slot, meta), value in zip(feed.tensors, values[:at], strict=True):
            env.add(slot, meta, value)
        scalars = dict(zip(feed.scalars, values[at : at + len(feed.scalars)], strict=True))
        at += len(feed.scalars)
        drawn = dict(zip(feed.draws, values[at : at + len(feed.draws)], strict=True))
        at += len(feed.draws)
        keys = dict(zip(feed.keys, values[at:], strict=True))
        gradients: dict[int, Sequence[Tensor]] = {}
        for i in piece.positions:
            outs = plan.program.calls[i].outs
            if i in forward:
                *losses, _, _, _ = gradients[i] = _run_head(forward[i], env, rewrites.measured)
                _bind(env, outs, losses)
            elif i in backward:
                head, which = backward[i]
                _bind(env, outs, _scaled(gradients[head.forward][2 + which], head, env, outs))
            elif i in rewrites.narrow:
                a, b = (env.get(r.slot, r.meta).to(torch.bfloat16) for r in plan.program.calls[i].args)
                _bind(env, outs, plan.program.calls[i].op(a, b).to(torch.float32))
            elif i not in left_out:
                _replay_call(plan, i, env, scalars, drawn, keys)
        return [env.base(new) for new in piece.outputs]

    return replay


def _replay_call(
    plan: Plan,
    position: int,
    env: _Environment,
    scalars: dict[int, Tensor],
    drawn: dict[int, Tensor],
    keys: dict[int, Tensor],
) -> None:
    call = plan.program.calls[position]
    next_scalar = plan.scalar_base[position]

    def fetch(value: Any) -> Any:
        nonlocal next_scalar
        if isinstance(value, (list, tuple)):
            return type(value)(fetch(v) for v in value)
        if type(value) is Ref:
            return env.get(value.slot, value.meta)
        if type(value) is Scalar:
            next_scalar += 1
            return scalars[next_scalar - 1]
        return value

    args = tuple(fetch(a) for a in call.args)
    kwargs = {k: fetch(v) for k, v in call.kwargs.items()}
    if env.free:
        last = layout.images(plan.program, position, env.free)
        args = tuple(a.contiguous(memory_format=torch.channels_last) if i in last else a for i, a in enumerate(args))
    if position in drawn:
        out = randomness.apply_drawn(call, args, drawn[position])
    elif position in plan.keys:
        out = randomness.hashed(call, args, kwargs, keys[plan.keys[position]])
    elif next_scalar != plan.scalar_base[position]:
        out = promoted.apply(call, args, kwargs)
    else:
        out = call.op(*args, **kwargs)
    _bind(env, call.outs, out)


def _run_head(head: Head, env: _Environment, measured: bool) -> Sequence[Tensor]:
    hidden, weight, bias, labels = (
        None if r is None else env.get(r.slot, r.meta) for r in (head.hidden, head.weight, head.bias, head.labels)
    )
    wanted = [i is not None for i in head.gradients]
    values: Sequence[Tensor] = torch.ops.markstep.loss_head(
        hidden, weight, bias, labels, head.reduction, head.ignore_index, wanted, measured
    )
    return values


def _scaled(gradient: Tensor, head: Head, env: _Environment, template: New) -> Tensor:
    """The gradient that a call gives, from the one for a loss gradient of 1."""
    if head.grad is not None:
        gradient = (gradient * env.get(head.grad.slot, head.grad.meta)).to(gradient.dtype)
    return gradient.view(template.meta[0])


def _bind(env: _Environment, template: Any, value: Any) -> None:
    if isinstance(template, (list, tuple)):
        for t, v in zip(template, value, strict=True):
            _bind(env, t, v)
    elif isinstance(template, New):
        env.add(template.slot, template.meta, value if template.slot in env.free else _laid_out(value, template.meta))
    elif isinstance(template, Ref):
        env.add(template.slot, template.meta, value)


def _laid_out(value: Tensor, meta: Meta) -> Tensor:
    """`value` with the strides that the real operator gave it: some fake kernels and decompositions differ in that."""
    same = all(n == 1 or a == b for n, a, b in zip(meta[0], value.stride(), meta[1], strict=True))
    if same or 0 in meta[0]:
        return value
    return torch.empty_strided(meta[0], meta[1], dtype=meta[3], device=meta[4]).copy_(value)


class _Environment:
    """The tensors that are known of every storage while a piece is traced.

    Attributes:
        free: slots whose tensors may have other strides than was recorded.
    """

    def __init__(self, free: frozenset[int]) -> None:
        self.free = free
        self.known: dict[int, dict[Meta, Tensor]] = {}
        self.first: dict[int, Meta] = {}

    def add(self, slot: int, meta: Meta, value: Tensor) -> None:
        self.first.setdefault(slot, meta)
        self.known.setdefault(slot, {})[meta] = value

    def get(self, slot: int, meta: Meta) -> Tensor:
        views = self.known[slot]
        if meta not in views:
            base_meta = self.first[slot]
            if base_meta[3] != meta[3]:
                raise NotLowerable("one storage is seen with several dtypes")
            views[meta] = torch.as_strided(views[base_meta], meta[0], meta[1], meta[2] - base_meta[2])
        return views[meta]

    def base(self, new: New) -> Tensor:
        return self.known[new.slot][new.meta]
