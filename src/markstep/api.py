"""The doors for plain PyTorch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ParamSpec, TypeVar, cast

from markstep.engine import report, threads
from markstep.engine.options import enabled, resolve
from markstep.engine.region import Place, Region
from markstep.engine.sources import user_line

P = ParamSpec("P")
R = TypeVar("R")
_places: dict[Any, Place] = {}


def compile(fn: Callable[P, R], **options: Any) -> Callable[P, R]:  # noqa: A001
    """Returns `fn`, a function that does one training step, so that it runs compiled once it has been seen a few times.

    Args:
        fn: forward, backward, clipping, optimizer: whatever one step is. Its Python still runs every time.
        **options: see `Options`.

    Raises:
        TypeError: an unknown option.
        ValueError: a value that an option does not take.
    """
    place = Place(resolve(options), getattr(fn, "__qualname__", repr(fn)))
    if not enabled():
        return fn

    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if place.idle():
            report.current().eager_steps += 1
            return fn(*args, **kwargs)
        with Region(place, "end of the step", (args, kwargs) if place.options.replay else None) as region:
            if region.skipped:
                return cast(R, region.result)
            result = fn(*args, **kwargs)
            region.observe(result)
            return result

    return wrapper


def step(**options: Any) -> AbstractContextManager[object]:
    """A context manager around one training step. See `compile`; each `with` line is a place of its own.

    Raises:
        TypeError: an unknown option.
        ValueError: a value that an option does not take.
    """
    if not enabled():
        resolve(options)
        return nullcontext()
    if options.get("replay"):
        raise TypeError(
            "replay=True skips the Python of the step, which a `with` block cannot do: use markstep.compile(fn, replay=True)"
        )
    frame = sys._getframe(1)
    key = (frame.f_code, frame.f_lineno, tuple(sorted(options.items())))
    place = _places.get(key)
    if place is None:
        place = _places[key] = Place(resolve(options), f"{frame.f_code.co_filename}:{frame.f_lineno}")
    return Region(place, "end of the step")


def sync() -> None:
    """Runs everything that is pending in this thread: afterwards all tensors hold their values."""
    engine = threads.active()
    if engine is not None:
        engine.boundary("markstep.sync()", user_line())


@contextmanager
def pause() -> Iterator[None]:
    """Inside, operators run at once and do not become part of the step. Values of the step are computed when they are used."""
    engine = threads.active()
    if engine is None:
        yield
        return
    engine.paused += 1
    try:
        yield
    finally:
        engine.paused -= 1


def explain() -> report.Report:
    """What Markstep has done in this process: prints as a summary, with every figure as an attribute."""
    return report.current()


def install_torch_xla(*, instead_of_real: bool = False) -> None:
    """Makes `import torch_xla` and the xla device work in this process and its children.

    Args:
        instead_of_real: take the place of a torch_xla that is installed; without this it is left alone.

    Raises:
        RuntimeError: a real torch_xla is installed, or imported already.
        NativeUnavailable: there is no C++ compiler.
    """
    from markstep.compat.exposing import expose_torch_xla
    from markstep.xla.device import install

    if not expose_torch_xla(instead_of_real=instead_of_real):
        raise RuntimeError(
            "a real torch_xla is installed here: uninstall it, or call markstep.install_torch_xla(instead_of_real=True)"
        )
    install()
