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
_CHOOSERS = ((torch, "tensor_split", (1,)), (torch.Tensor, "tensor_split", (1,)), (torch, "ctc_loss", (2, 3)))
_SHOWERS = ("__repr__", "__format__")
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
    # Fills a tensor of lengths through its pointer.
    vf: Any = torch._VF
    vf._pad_packed_sequence = _reading(vf._pad_packed_sequence, "pad_packed_sequence")
    for owner, name, positions in _CHOOSERS:
        setattr(owner, name, _choosing(getattr(owner, name), positions))
    torch.Tensor._make_subclass = staticmethod(_unseen(torch.Tensor._make_subclass))  # type: ignore[assignment]
    _wrap_rng()
    _wrap_loader()
    os.register_at_fork(after_in_child=threads.forget)


def _reading(original: Callable[..., Any], reason: str) -> Callable[..., Any]:
    """A function that looks at memory, made safe: the tensor gets its values first, and its operators run at once."""

    @functools.wraps(original)
    def wrapper(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        engine = threads.active()
        if engine is None:
            return original(self, *args, **kwargs)
        engine.before_reading(self, reason)
        engine.paused += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            engine.paused -= 1

    return wrapper


def _unseen(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose operators no dispatch mode may see: the object they make must not have been in Python yet."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        engine = threads.active()
        if engine is None:
            return original(*args, **kwargs)
        engine.mode.__exit__(None, None, None)
        try:
            return original(*args, **kwargs)
        finally:
            engine.mode.__enter__()

    return wrapper


def _choosing(original: Callable[..., Any], positions: tuple[int, ...]) -> Callable[..., Any]:
    """A function that reads its arguments at `positions` above the dispatcher to decide which operators to call."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        engine = threads.active()
        if engine is not None:
            for value in (*(args[i] for i in positions if i < len(args)), *kwargs.values()):
                if isinstance(value, torch.Tensor):
                    engine.before_reading(value, original.__name__)
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
