"""Python functions that look past the dispatcher: while a step is pending they must see its values.

Installed once, at the first region; outside regions each costs one attribute look-up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from markstep.engine import handover, rng, threads

_READERS = (
    "numpy",
    "tolist",
    "data_ptr",
    "untyped_storage",
    "__dlpack__",
    "__array__",
    "share_memory_",
    "const_data_ptr",
)
# Functions above the dispatcher that read or fill small tensors through pointers: (owner, name, arguments read).
_COMPOSITES: tuple[tuple[Any, str, tuple[int, ...]], ...] = (
    (torch, "tensor_split", (1,)),
    (torch.Tensor, "tensor_split", (1,)),
    (torch, "ctc_loss", (2, 3)),
    (torch._VF, "_pad_packed_sequence", (0, 1)),
)
_SHOWERS = ("__repr__", "__format__")
_KEY: Any = torch._C._parse_dispatch_key("Fake")  # where calls are intercepted, see record/native_code/interception.h
_INTERCEPTION = torch._C.DispatchKeySet(_KEY)
_installed = False


def install(native: ModuleType) -> None:
    """Wraps the functions; a second call does nothing."""
    global _installed
    if _installed:
        return
    _installed = True
    for name in _READERS:
        if hasattr(torch.Tensor, name):
            setattr(torch.Tensor, name, _reading(getattr(torch.Tensor, name), f"Tensor.{name}()"))
    for name in _SHOWERS:
        setattr(torch.Tensor, name, _reading(getattr(torch.Tensor, name), "print"))
    for owner, name, positions in _COMPOSITES:
        setattr(owner, name, _reading(getattr(owner, name), name, positions))
    torch.Tensor._make_subclass = staticmethod(_unseen(torch.Tensor._make_subclass))  # type: ignore[method-assign]
    rng.install(native)
    _wrap_loader()
    handover.install()


def _reading(original: Callable[..., Any], reason: str, positions: tuple[int, ...] = (0,)) -> Callable[..., Any]:
    """A function that looks at memory, made safe.

    The arguments at `positions` get their values first, and its operators run at once.
    """

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        engine = threads.active()
        if engine is None:
            return original(*args, **kwargs)
        for value in (*(args[i] for i in positions if i < len(args)), *kwargs.values()):
            if isinstance(value, torch.Tensor):
                engine.before_reading(value, reason)
        engine.paused += 1
        try:
            return original(*args, **kwargs)
        finally:
            engine.paused -= 1

    return wrapper


def _unseen(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose operators must not be intercepted: torch wants an object that has not been in Python yet."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_INTERCEPTION):
            return original(*args, **kwargs)

    return wrapper


def _wrap_loader() -> None:
    """Loading data is no part of the step, wherever in the loop it happens."""
    from torch.utils.data import dataloader

    iterator = dataloader._BaseDataLoaderIter
    iterator.__next__ = iterator.next = _paused(iterator.__next__)  # type: ignore[method-assign, attr-defined]
    dataloader.DataLoader.__iter__ = _paused(dataloader.DataLoader.__iter__)  # type: ignore[method-assign]


def _paused(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(self: Any) -> Any:
        engine = threads.active()
        if engine is None:
            return original(self)
        engine.paused += 1
        try:
            return original(self)
        finally:
            engine.paused -= 1

    return wrapper
