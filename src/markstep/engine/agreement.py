"""Processes that train together run a step all compiled or all eagerly, or their parameters drift apart by rounding.

Where a step reduces gradients, `markstep.distributed` gives its site an object that knows what all processes are about to do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from markstep.engine.site import Site


class Agreement(Protocol):
    """What the processes have agreed on.

    Attributes:
        first: is this the process whose measurements decide between eager and compiled?
    """

    first: bool

    def together(self) -> bool:
        """May the step that begins now run compiled? The same answer in all processes."""


class _Local(threading.local):
    site: Site | None = None

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []


_local = _Local()


def begin(site: Site | None) -> None:
    """A step of `site` begins in this thread, or one that Markstep has nothing to do with."""
    _local.site = site
    waiting, _local.waiting = _local.waiting, []
    for look in waiting:
        look()


def before_next_step(look: Callable[[], None]) -> None:
    """Calls `look` when the next step of this thread begins, at a moment when all tensors have their values."""
    _local.waiting.append(look)


def begun() -> Site | None:
    """The site whose step began last in this thread."""
    return _local.site
