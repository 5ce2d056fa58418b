"""The engine of each thread."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import TYPE_CHECKING

from markstep.record import native

if TYPE_CHECKING:
    from markstep.engine.engine import Engine


class _Local(threading.local):
    engine: Engine | None = None


_local = _Local()


def active() -> Engine | None:
    """The engine of this thread if it is inside a region that Markstep follows.

    In a thread of autograd's it is the engine of the thread that called backward.
    """
    engine = _local.engine
    if engine is None and (module := native.loaded()) is not None and (mode := module.following()) is not None:
        engine = mode.engine
    return engine if engine is not None and engine.site is not None else None


def engine(module: ModuleType) -> Engine:
    """The engine of this thread, made at first use."""
    from markstep.engine.engine import Engine

    if _local.engine is None:
        _local.engine = Engine(module)
    return _local.engine


def forget() -> None:
    """In a forked child (a DataLoader worker): the parent's region is not ours."""
    if _local.engine is not None:
        _local.engine.site = None
        _local.engine.predicting = False
    _local.engine = None
