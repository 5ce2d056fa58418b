"""`markstep run script.py`: an unmodified script; steps end where an optimizer's step ends."""

from __future__ import annotations

import runpy
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markstep.engine import patches, threads
from markstep.engine.engine import Engine
from markstep.engine.options import Options, enabled, resolve
from markstep.engine.region import Place, hot_path
from markstep.engine.site import Site, clock
from markstep.engine.sources import user_line


def run_script(path: str, args: Sequence[str]) -> None:
    """Runs a Python file as `python path args...` would, with training steps compiled.

    Raises:
        FileNotFoundError: there is no such file.
    """
    script = Path(path)
    if not script.is_file():
        raise FileNotFoundError(f"there is no script {path!r}: give the path of a Python file")
    sys.argv = [path, *args]
    sys.path.insert(0, str(script.resolve().parent))
    if not enabled():
        runpy.run_path(path, run_name="__main__")
        return
    with Automatic(resolve({})):
        runpy.run_path(path, run_name="__main__")


class Automatic:
    """While active, every optimizer step in any thread ends a step of that thread."""

    def __init__(self, options: Options) -> None:
        self.place = Place(options, "script")
        self.local = threading.local()

    def __enter__(self) -> Automatic:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.hook = register_optimizer_step_post_hook(self._after_step)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.hook.remove()
        stretch: Stretch | None = getattr(self.local, "stretch", None)
        if stretch is not None:
            stretch.stop(failed=kind is not None)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        stretch: Stretch | None = getattr(self.local, "stretch", None)
        if stretch is None:
            if threads.active() is not None:
                return  # inside a region that the script itself opened
            module = hot_path(self.place.options)
            if module is None:
                return
            patches.install(module)
            stretch = self.local.stretch = Stretch(threads.engine(module), self.place.site(module))
            stretch.begin()
        else:
            stretch.next()


class Stretch:
    """What one thread does between two optimizer steps, again and again."""

    def __init__(self, engine: Engine, site: Site) -> None:
        self.engine, self.site = engine, site
        self.followed = False

    def begin(self) -> None:
        """Starts the first stretch, after the first optimizer step."""
        self.plan = self.site.plan()
        self._follow(self.plan != "eager")
        self.start = clock()

    def next(self) -> None:
        """An optimizer has made a step: ends this stretch and starts the next."""
        if self.followed and self.engine.site is not self.site:
            return  # the script's own region is running inside
        if self.followed:
            self.engine.boundary("optimizer step", user_line())
            self.site.finished(self.plan, clock() - self.start, self.engine.endings, self.engine.replayed)
        elif threads.active() is None:
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
            self.engine.mode.__enter__()
        if not wanted and self.followed:
            self.engine.leave("optimizer step", "")
            self.engine.mode.__exit__(None, None, None)
        self.followed = wanted
