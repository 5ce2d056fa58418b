"""The intermediate representation: a straight line of operator calls on numbered storages.

A value is named by the storage it lives in and the way it looks at it: `Ref(slot, meta)`. Slots number the storages of a
program in the order of first use, so two recordings of the same step give equal programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

Meta = tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype, torch.device, bool, bool]
"""(shape, stride in elements, offset in elements, dtype, device, conjugate bit, negative bit) of a tensor on its storage."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor: a view, described by `meta`, of storage number `slot`."""

    slot: int
    meta: Meta


@dataclass(frozen=True, slots=True)
class New:
    """A result on a storage that its call allocates; `nbytes` is the size of that storage in bytes."""

    slot: int
    meta: Meta
    nbytes: int


@dataclass(frozen=True, slots=True)
class Same:
    """A result that is one of the call's own arguments: tensor number `position`, counted through nested lists."""

    position: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number that differs between steps: an input of the program, of the given Python type.

    Its absolute value is at most `limit`, so that no kernel refuses it: an error has to come at the user's line.
    """

    type: type
    limit: float = field(default=math.inf, compare=False)


@dataclass(frozen=True, slots=True)
class Call:
    """One operator call. `args` and `kwargs` hold `Ref`, `Scalar` and constants, nested in lists and tuples.

    `grad` is the grad mode it was made in: some kernels look at it (oneDNN's LSTM keeps a workspace only with it).
    `bumps` names tensor arguments (counted through nested lists) whose version counter the kernel itself moves on.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: Any
    writes: tuple[int, ...]
    source: str
    grad: bool = False
    bumps: tuple[int, ...] = ()

    @property
    def reads(self) -> list[int]:
        """Slots that the arguments look at, written ones included."""
        return [r.slot for r in leaves((self.args, tuple(self.kwargs.values()))) if type(r) is Ref]

    @property
    def absolute(self) -> bool:
        """Is one of the arguments an offset on a storage? Other operators count from the tensor that they are given."""
        return self.op._schema.name.startswith("aten::as_strided")

    @property
    def creates(self) -> list[New]:
        """Results on storages of their own."""
        return [o for o in leaves(self.outs) if type(o) is New]

    def __reduce__(self) -> tuple[Any, ...]:
        op = (self.op.name(), torch.Tag.nondeterministic_seeded in self.op.tags)
        return _load_call, (op, self.args, self.kwargs, self.outs, self.writes, self.source, self.grad, self.bumps)

    def __str__(self) -> str:
        parts = [_show(a) for a in self.args] + [f"{k}={_show(v)}" for k, v in self.kwargs.items()]
        name = self.op.name().replace("::", ".")
        types = ", ".join(_type(o.meta) for o in leaves(self.outs) if isinstance(o, (New, Ref)))
        comment = "  # " + "; ".join(p for p in (types, self.source) if p) if types or self.source else ""
        return f"{_show(self.outs)} = {name}({', '.join(parts)}){comment}"


@dataclass(frozen=True)
class Program:
    """A recorded piece of training, from one boundary to the next.

    Attributes:
        calls: all calls in the order they were made.
        done: positions of calls that run early, where their value is asked for, and not at the boundary.
        live: slots whose value somebody still holds at the boundary: the results.
    """

    calls: tuple[Call, ...]
    done: frozenset[int] = frozenset()
    live: frozenset[int] = frozenset()

    @cached_property
    def pending(self) -> list[int]:
        """Positions of the calls that run at the boundary."""
        return [i for i in range(len(self.calls)) if i not in self.done]

    @cached_property
    def bases(self) -> dict[int, New]:
        """For every slot that a pending call allocates: the result that allocates it."""
        return {new.slot: new for i in self.pending for new in self.calls[i].creates}

    @cached_property
    def inputs(self) -> dict[int, list[Meta]]:
        """For every slot that exists before the boundary: the distinct views that the pending calls take of it."""
        found: dict[int, list[Meta]] = {}
        for i in self.pending:
            for ref in leaves((self.calls[i].args, tuple(self.calls[i].kwargs.values()), self.calls[i].outs)):
                if type(ref) is Ref and ref.slot not in self.bases:
                    metas = found.setdefault(ref.slot, [])
                    if ref.meta not in metas:
                        metas.append(ref.meta)
        return found

    @cached_property
    def mutated(self) -> set[int]:
        """Input slots that the pending calls write to."""
        return {w for i in self.pending for w in self.calls[i].writes if w not in self.bases}

    def __str__(self) -> str:
        lines = [f"program: {len(self.calls)} calls, {len(self.inputs)} inputs, {len(self.live)} results"]
        for slot, metas in self.inputs.items():
            lines.append(
                f"  s{slot}: {', '.join(_type(m) for m in metas)}{'  (updated in place)' if slot in self.mutated else ''}"
            )
        lines += [f"  {'[early] ' if i in self.done else ''}{call}" for i, call in enumerate(self.calls)]
        return "\n".join([*lines, f"  return {', '.join(f's{s}' for s in sorted(self.live))}"])


def leaves(value: Any) -> Iterator[Any]:
    """Everything in nested lists and tuples, in order."""
    if isinstance(value, (list, tuple)):
        for v in value:
            yield from leaves(v)
    else:
        yield value


def map_leaves(fn: Callable[[Any], Any], value: Any) -> Any:
    """`value` with `fn` applied to everything in its nested lists and tuples."""
    if isinstance(value, (list, tuple)):
        return type(value)(map_leaves(fn, v) for v in value)
    return fn(value)


def find_op(name: str) -> Any:
    """The operator overload with a qualified name such as `aten::add.Tensor`."""
    qualified, _, overload = name.partition(".")
    namespace, _, base = qualified.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


@dataclass(frozen=True)
class UnknownOp:
    """An operator of a library that this process has not loaded: it has a name, and cannot be called."""

    qualified: str
    tags: tuple[torch.Tag, ...]

    @property
    def namespace(self) -> str:
        """What stands before the colons."""
        return self.qualified.partition("::")[0]

    def name(self) -> str:
        """As of a real operator, with the overload."""
        return self.qualified


def _load_call(op: tuple[str, bool], *rest: Any) -> Call:
    name, random = op
    try:
        return Call(find_op(name), *rest)
    except AttributeError:
        return Call(UnknownOp(name, (torch.Tag.nondeterministic_seeded,) if random else ()), *rest)


def _show(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        inner = ", ".join(_show(v) for v in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if isinstance(value, (Ref, New)):
        return f"s{value.slot}"
    if isinstance(value, Same):
        return f"arg{value.position}"
    if isinstance(value, Scalar):
        return f"<{value.type.__name__} input>"
    return repr(value)


def _type(meta: Meta) -> str:
    shape, _, _, dtype, device, *_ = meta
    name = (
        str(dtype)
        .removeprefix("torch.")
        .replace("bfloat", "bf")
        .replace("float", "f")
        .replace("int", "i")
        .replace("complex", "c")
    )
    return f"{device} {name}[{', '.join(map(str, shape))}]"
