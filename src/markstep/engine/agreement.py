"""Processes that train together run a step all compiled or all eagerly, or their parameters drift apart by rounding.

Where a step reduces gradients, `markstep.distributed` gives its site an object that knows what all processes are about to do.
"""

from __future__ import annotations

import threading
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


_local = _Local()


def begin(site: Site | None) -> None:
    """A step of `site` begins in this thread, or one that Markstep has nothing to do with."""
    _local.site = site


def begun() -> Site | None:
    """The site whose step began last in this thread."""
    return _local.site
