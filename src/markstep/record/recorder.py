"""Turns an eager operator call into a `Call` and a node of the program tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

from markstep.record.program import Call, Meta, New, Ref, Same, Scalar, leaves, map_leaves
from markstep.record.schema import Kind, OpFacts, facts, is_holdable

_interned: dict[Meta, Meta] = {}


def intern(meta: Meta) -> Meta:
    """One object for equal metadata, so that programs share it."""
    return _interned.setdefault(meta, meta)


def is_recordable(native: ModuleType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Can a program hold a call with these arguments (plain tensors and constants) as things are set now?"""
    if torch.get_default_dtype() is not torch.float32:
        return False
    values = leaves((args, tuple(kwargs.values())))
    return all(native.is_plain(v) if isinstance(v, torch.Tensor) else is_holdable(v) for v in values)


def describe_arguments(
    native: ModuleType, session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Templates of the arguments; binds the storages that are new to the path."""

    def describe(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return Ref(session.bind(value), intern(session.meta(value)))
        return value

    return map_leaves(describe, args), {k: map_leaves(describe, v) for k, v in kwargs.items()}


def describe_results(native: ModuleType, session: Any, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Template of the result; binds the storages that the call allocated."""
    tensors = [v for v in leaves((args, tuple(kwargs.values()))) if isinstance(v, torch.Tensor)]

    def describe(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        for position, argument in enumerate(tensors):
            if argument is value:
                return Same(position)
        slot, meta = session.lookup(value), intern(session.meta(value))
        if slot >= 0:
            return Ref(slot, meta)
        return New(session.bind(value), meta, native.nbytes(value))

    return map_leaves(describe, out)


def written_slots(known: OpFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """Slots that a call with these argument templates mutates."""
    if not known.writes:
        return ()
    written = [args[i] for i in range(len(args)) if i in known.writes] + [v for k, v in kwargs.items() if k in known.writes]
    return tuple(dict.fromkeys(r.slot for r in leaves(written) if type(r) is Ref))


def record_call(
    native: ModuleType,
    session: Any,
    op: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    source: str,
    run: Callable[..., Any] | None = None,
) -> tuple[bool, Any]:
    """Runs one call eagerly (with `run` in place of `op` if given) and appends it to the tree at the session's place.

    Returns:
        (recorded, result). Not recorded: the call changed the metadata of an argument, or gave a kind of tensor that
        a program cannot hold; the caller starts a new program after it.
    """
    templates = describe_arguments(native, session, args, kwargs)
    known = facts(op)
    watched = [v for v in leaves((args, tuple(kwargs.values()))) if isinstance(v, torch.Tensor)] if known.mutates else []
    before = [native.meta(t) for t in watched]
    versions = [_version(t) for t in watched]
    try:
        out = (run or op)(*args, **kwargs)
    except BaseException:
        session.trim()
        raise
    odd = any(isinstance(t, torch.Tensor) and not native.is_plain(t) for t in leaves(out))
    if odd or before != [native.meta(t) for t in watched]:
        session.trim()
        return False, out
    outs = describe_results(native, session, out, args, kwargs)
    bumps = tuple(i for i, t in enumerate(watched) for _ in range(_version(t) - versions[i]))
    call = Call(op, *templates, outs, written_slots(known, *templates), source, torch.is_grad_enabled(), bumps)
    append(native, session, call, special=False)
    return True, out


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def append(native: ModuleType, session: Any, call: Call, *, special: bool) -> Any:
    """Puts a node for `call` behind the session's current node and goes there."""
    node = native.Node(call.op, call, session.current, session.slot_count, special)
    session.enter(node)
    return node


def promote(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """The call with the numbers that differ from `args` and `kwargs` turned into inputs; None if anything else differs."""
    known = facts(call.op)
    if len(args) != len(call.args) or kwargs.keys() != call.kwargs.keys() or known.kind is not Kind.LAZY:
        return None
    if call.grad != torch.is_grad_enabled():
        return None
    limit = _limit(call)
    limits = {name: limit for name in known.promotable}
    try:
        new_args = tuple(_promote(t, v, limits.get(i)) for i, (t, v) in enumerate(zip(call.args, args, strict=True)))
        new_kwargs = {k: _promote(t, kwargs[k], limits.get(k)) for k, t in call.kwargs.items()}
    except _OtherDifference:
        return None
    promoted = replace(call, args=new_args, kwargs=new_kwargs)
    return None if promoted == call else promoted


def _limit(call: Call) -> float:
    """The largest number that every dtype of a call can hold: kernels refuse larger ones."""
    values = list(leaves((call.args, tuple(call.kwargs.values()))))
    dtypes = {v.meta[3] for v in values if isinstance(v, Ref)} | {v for v in values if isinstance(v, torch.dtype)}
    infos = [torch.finfo(d) if d.is_floating_point or d.is_complex else torch.iinfo(d) for d in dtypes - {torch.bool}] or [
        torch.finfo(torch.float32)
    ]
    return min(float(info.max) for info in infos)


class _OtherDifference(Exception):
    pass


def _promote(template: Any, value: Any, limit: float | None) -> Any:
    if isinstance(template, (list, tuple)):
        if type(template) is not type(value) or len(template) != len(value):
            raise _OtherDifference
        return type(template)(_promote(t, v, limit) for t, v in zip(template, value, strict=True))
    if isinstance(template, (Ref, Scalar)):
        return template
    if type(template) is not type(value):
        raise _OtherDifference
    if repr(template) == repr(value) if isinstance(value, (float, complex)) else template == value:
        return template
    if limit is not None and type(value) in (int, float) and abs(template) <= limit and abs(value) <= limit:
        return Scalar(type(value), limit)
    raise _OtherDifference


def first_difference(native: ModuleType, session: Any, call: Call, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What differs between an expected call and the one that came, for a person."""
    if call.op is not op:
        return f"operator: {call.op.name()} was expected, {op.name()} came"
    if len(args) != len(call.args) or kwargs.keys() != call.kwargs.keys():
        return f"{op.name()}: other arguments are given"
    if call.grad != torch.is_grad_enabled():
        return f"{op.name()}: grad mode {'off' if call.grad else 'on'} instead of {'on' if call.grad else 'off'}"
    named = [*zip(call.args, args, strict=True), *((t, kwargs[k]) for k, t in call.kwargs.items())]
    names = [a.name for a in op._schema.arguments[: len(args)]] + list(call.kwargs)
    for name, (template, value) in zip(names, named, strict=True):
        flat, given = list(leaves(template)), list(leaves(value))
        if len(flat) != len(given):
            return f"{op.name()}: {name} has {len(given)} entries instead of {len(flat)}"
        for t, v in zip(flat, given, strict=True):
            if text := _difference(native, session, t, v):
                return f"{op.name()}: {name}: {text}"
    return f"{op.name()}: its result"


def same_tensors(native: ModuleType, session: Any, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Does a call look at the expected tensors, whatever its constants are?"""
    templates, values = [*leaves((call.args, tuple(call.kwargs.values())))], [*leaves((args, tuple(kwargs.values())))]
    pairs = zip(templates, values, strict=False)
    return len(templates) == len(values) and not any(isinstance(t, Ref) and _difference(native, session, t, v) for t, v in pairs)


_FIELDS = ("shape", "stride", "storage offset", "dtype", "device", "conjugate bit", "negative bit")


def _difference(native: ModuleType, session: Any, template: Any, value: Any) -> str:
    if isinstance(template, Ref):
        if not isinstance(value, torch.Tensor):
            return f"{value!r} instead of a tensor"
        if not native.is_plain(value):
            return f"a {type(value).__name__} that is not a plain strided tensor"
        for field, want, got in zip(_FIELDS, template.meta, session.meta(value), strict=True):
            if want != got:
                return f"{field} {_text(got)} instead of {_text(want)}"
        slot = session.lookup(value)
        if slot != template.slot and (slot >= 0 or template.slot < session.slot_count):
            return "another tensor than before"
        return ""
    if isinstance(template, Scalar):
        return "" if type(value) is template.type else f"{type(value).__name__} instead of {template.type.__name__}"
    if type(template) is type(value) and template == value:
        return ""
    return f"constant {_text(value)} instead of {_text(template)}"


def _text(value: Any) -> str:
    return str(tuple(value)) if isinstance(value, (list, tuple)) else str(value)
