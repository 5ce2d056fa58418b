"""Names that torch_xla has given up, or that have nothing to do here."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from markstep.xla import notices, runtime


def using_pjrt() -> bool:
    """Gone since torch_xla 2.5: True, there is no other runtime."""
    notices.warn_removed("using_pjrt", "2.5", "nothing: it is always true")
    return True


def requires_pjrt(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Gone since torch_xla 2.5: the function itself."""
    notices.warn_removed("requires_pjrt", "2.5", "the function without it")
    return fn


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """Gone since torch_xla 2.8: `torch_xla.device`."""
    notices.warn_removed("xr.xla_device", "2.8", "torch_xla.device")
    return runtime.device(n)


def apply_xla_patch_to_nn_linear(module: torch.nn.Module, patched_function: Any = None) -> torch.nn.Module:
    """The module itself: the patch is a workaround for XLA's compiler."""
    return module


class XLAPatchedLinear(torch.autograd.Function):
    """`torch.nn.functional.linear` as a function of autograd: `XLAPatchedLinear.apply(input, weight, bias)`."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:  # noqa: A002
        """The product."""
        ctx.save_for_backward(input, weight)
        ctx.has_bias = bias is not None
        return torch.nn.functional.linear(input, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Gradients of what needs one."""
        value, weight = ctx.saved_tensors
        (grad,) = grads
        rows = grad.reshape(-1, grad.shape[-1])
        return (
            grad @ weight if ctx.needs_input_grad[0] else None,
            rows.t() @ value.reshape(-1, value.shape[-1]) if ctx.needs_input_grad[1] else None,
            rows.sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None,
        )


@contextmanager
def alias_with_buffer_donor_config(should_alias: bool = True) -> Iterator[None]:
    """Has no effect: programs overwrite what the step overwrites."""
    yield


def assume_pure(fn: Callable[..., Any], *, add_rng_seed_argument: bool = False) -> Callable[..., Any]:
    """The function itself: Markstep compiles what repeats without being told.

    Raises:
        NotImplementedError: `add_rng_seed_argument` is set.
    """
    if add_rng_seed_argument:
        raise NotImplementedError("add_rng_seed_argument is not supported: random numbers need no argument in Markstep")
    return fn


def deprecated(module: Any, new: Callable[..., Any], old_name: str | None = None, extra_msg: str | None = None) -> Any:
    """`new` under an old name, with a warning at each call."""
    return _renamed(new, f"{module.__name__}.{old_name or new.__name__}", extra_msg)


def mark_deprecated(new: Callable[..., Any], extra_msg: str | None = None) -> Any:
    """`new` with a warning at each call."""
    return _renamed(new, f"{new.__module__}.{new.__name__}", extra_msg)


def register_deprecated(module: Any, new: Callable[..., Any]) -> None:
    """Puts `new`, with a warning at each call, into a module."""
    setattr(module, new.__name__, deprecated(module, new))


def _renamed(new: Callable[..., Any], old: str, extra: str | None) -> Callable[..., Any]:
    @functools.wraps(new)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        text = f"{old} is deprecated: use {new.__module__}.{new.__name__}" + (f". {extra}" if extra else "")
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return new(*args, **kwargs)

    return wrapper
