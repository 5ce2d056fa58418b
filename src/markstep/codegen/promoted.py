"""Arithmetic with numbers that change every step, inside a compiled program: the number is a 0-dim tensor there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from markstep.record.program import Call, New, Ref, Same, Scalar, leaves


def _binary(fn: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def apply(x: Any, y: Any, alpha: Any = 1) -> Any:
        return fn(x, y if isinstance(alpha, int) and alpha == 1 else y * alpha)

    return apply


_RULES: dict[str, Callable[..., Any]] = {
    "add": _binary(lambda x, y: x + y),
    "sub": _binary(lambda x, y: x - y),
    "rsub": _binary(lambda x, y: y - x),
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "pow": lambda x, y: x**y,
    "addcmul": lambda x, a, b, value=1: x + value * a * b,
    "addcdiv": lambda x, a, b, value=1: x + value * (a / b),
    "lerp": lambda x, end, weight: x + weight * (end - x),
    "fill": lambda x, value: torch.zeros_like(x) + value,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}
_OPMATH = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


def is_known(call: Call) -> bool:
    """Is there a rule for this call, all of whose tensors are of one floating dtype?"""
    schema = call.op._schema
    if schema.name.removeprefix("aten::").removesuffix("_") not in _RULES or schema.overload_name.endswith("mode"):
        return False
    values = [v for v in leaves((call.args, tuple(call.kwargs.values()))) if type(v) is Ref]
    made = [o for o in leaves(call.outs) if type(o) is New]
    dtypes = {v.meta[3] for v in values} | {o.meta[3] for o in made}
    return len(dtypes) == 1 and next(iter(dtypes)).is_floating_point and isinstance(call.outs, (New, Same)) and bool(values)


def apply(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call with 0-dim float64 or int64 tensors in place of its promoted numbers; traced into the compiled program."""
    name = call.op._schema.name.removeprefix("aten::")
    dtype = next(v.meta[3] for v in leaves((call.args, tuple(call.kwargs.values()))) if type(v) is Ref)
    wide = _OPMATH.get(dtype, dtype)

    def widen(template: Any, value: Any) -> Any:
        if type(template) in (Ref, Scalar):
            return value.to(wide)
        return value

    wide_args = [widen(t, a) for t, a in zip(call.args, args, strict=True)]
    wide_kwargs = {k: widen(call.kwargs[k], v) for k, v in kwargs.items()}
    result: Tensor = _RULES[name.removesuffix("_")](*wide_args, **wide_kwargs)
    return args[0].copy_(result) if name.endswith("_") else result.to(dtype)
