"""What one thread does between two boundaries that the script itself marks, again and again."""

from __future__ import annotations

from typing import Any

from markstep.engine.engine import Engine
from markstep.engine.site import Site, clock
from markstep.engine.sources import user_line


def trains_on_xla(optimizer: Any) -> bool:
    """Are the parameters of an optimizer on the xla device? Its steps end at the device's barrier."""
    return any(p.device.type == "xla" for group in optimizer.param_groups[:1] for p in group["params"][:1])


class Stretch:
    """Follows a site from one boundary to the next.

    Args:
        engine: that of the thread.
        site: the place that trains.
        everything: follow all operators of the thread; else those that tensors of the xla device lead to.
    """

    def __init__(self, engine: Engine, site: Site, *, everything: bool = True) -> None:
        self.engine, self.site, self.everything = engine, site, everything
        self.followed = False

    def begin(self) -> None:
        """Starts the first stretch."""
        self.plan = self.site.plan()
        self._follow(self.plan != "eager")
        self.start = clock()

    def next(self, reason: str) -> None:
        """A boundary: ends this stretch and starts the next."""
        if self.engine.site is not (self.site if self.followed else None):
            return  # inside a region that the script itself opened
        if self.followed:
            self.engine.boundary(reason, user_line())
            self.site.finished(self.plan, clock() - self.start, self.engine.endings, self.engine.replayed)
        else:
            self.site.finished(self.plan, clock() - self.start, [], False)
        self.begin()

    def stop(self, *, failed: bool) -> None:
        """The script is over."""
        if not self.followed:
            return
        self.engine.mode.__exit__(None, None, None)
        self.followed = False
        if failed:
            self.engine.abort()
        else:
            self.engine.leave("end of the script", user_line())

    def _follow(self, wanted: bool) -> None:
        if wanted:
            self.engine.enter(self.site)
        if wanted and not self.followed:
            self.engine.mode.everything = self.everything
            self.engine.mode.__enter__()
        if not wanted and self.followed:
            self.engine.leave("this step runs eagerly", "")
            self.engine.mode.__exit__(None, None, None)
        self.followed = wanted
