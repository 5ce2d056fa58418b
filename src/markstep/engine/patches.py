"""Python functions that look past the dispatcher: while a step is pending they must see its values.

Installed once, at the first region; outside regions each costs one attribute look-up.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

from markstep.engine import rng, threads
from markstep.engine.sources import user_line

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
# Functions above the dispatcher that read or fill small tensors through pointers: (owner, name, arguments that are read).
_COMPOSITES: tuple[tuple[Any, str, tuple[int, ...]], ...] = (
    (torch, "tensor_split", (1,)),
    (torch.Tensor, "tensor_split", (1,)),
    (torch, "ctc_loss", (2, 3)),
    (torch._VF, "_pad_packed_sequence", (0, 1)),
)
_SHOWERS = ("__repr__", "__format__")
_INTERCEPTION = torch._C.DispatchKeySet(torch._C._parse_dispatch_key("Fake"))  # see _native.cpp
_installed = False


def install() -> None:
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
    torch.Tensor._make_subclass = staticmethod(_unseen(torch.Tensor._make_subclass))  # type: ignore[assignment]
    _wrap_rng()
    _wrap_loader()
    os.register_at_fork(after_in_child=threads.forget)


def _reading(original: Callable[..., Any], reason: str, positions: tuple[int, ...] = (0,)) -> Callable[..., Any]:
    """A function that looks at memory, made safe: the arguments at `positions` get their values first, its operators run at once."""

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


def _wrap_rng() -> None:
    real_get, real_set, real_seed, real_reseed = (
        torch.random.get_rng_state,
        torch.random.set_rng_state,
        torch.random.manual_seed,
        torch.random.seed,
    )

    @functools.wraps(real_get)
    def get_rng_state() -> torch.Tensor:
        return real_get() if threads.active() is None else rng.get_rng_state()

    @functools.wraps(real_set)
    def set_rng_state(new_state: torch.Tensor) -> None:
        if threads.active() is None:
            real_set(new_state)
        else:
            rng.set_rng_state(new_state)

    @functools.wraps(real_seed)
    def manual_seed(seed: int) -> torch.Generator:
        _flush("torch.manual_seed")
        return real_seed(seed)

    @functools.wraps(real_reseed)
    def reseed() -> int:
        _flush("torch.seed")
        return real_reseed()

    for module in (torch, torch.random):
        module.get_rng_state = get_rng_state  # type: ignore[attr-defined]
        module.set_rng_state = set_rng_state  # type: ignore[attr-defined]
        module.manual_seed = manual_seed  # type: ignore[attr-defined]
        module.seed = reseed  # type: ignore[attr-defined]


def _flush(what: str) -> None:
    engine = threads.active()
    if engine is not None and engine.session.length:
        engine.boundary(what, user_line())


def _wrap_loader() -> None:
    from torch.utils.data import dataloader

    original = dataloader._BaseDataLoaderIter.__next__

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

    dataloader._BaseDataLoaderIter.__next__ = wrapper
    dataloader._BaseDataLoaderIter.next = wrapper  # type: ignore[attr-defined]
