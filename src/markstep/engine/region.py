"""Entering and leaving regions: the pieces of user code that Markstep follows."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from markstep.engine import heap, patches, report, threads
from markstep.engine.options import Options
from markstep.engine.sharing import Sharing
from markstep.engine.site import Site, clock
from markstep.engine.sources import user_line
from markstep.record import native

log = logging.getLogger("markstep")
_builder: threading.Thread | None = None
_broken: str | None = None
_loading = threading.Lock()
_waiting = Sharing(0.5)  # while the C++ part is built, once per machine, nothing else can begin


class Region:
    """A context manager around one training step of a site; inside another region it does nothing.

    Attributes:
        skipped: the step has been replayed already, and `result` is what it returns.
    """

    def __init__(self, place: Place, reason: str, call: tuple[Any, Any] | None = None) -> None:
        self.place, self.reason, self.call = place, reason, call
        self.plan = "nested"
        self.skipped, self.result = False, None

    def __enter__(self) -> Region:
        if threads.active() is not None:
            return self
        if self.place.idle():
            self.plan = "off"
            report.current().eager_steps += 1
            return self
        module = hot_path(self.place.options)
        if module is None:
            self.plan = "off" if _broken is not None else "building"
            report.current().eager_steps += 1
            self.start = clock()
            return self
        patches.install(module)
        self.site = self.place.site(module)
        self.plan = self.site.plan()
        self.engine = threads.engine(module)
        self.start = clock()
        if self.plan == "predict" and self.call is not None:
            self.skipped, self.result = self.site.replayer.run(self.engine, *self.call)
        if self.plan != "eager" and not self.skipped:
            self.engine.enter(self.site)
            self.engine.mode.everything = True
            self.engine.mode.__enter__()
        return self

    def observe(self, result: Any) -> None:
        """With replay=True: the step has made its last call and returns `result`."""
        if self.plan != "predict" or self.call is None:
            return
        replayer, ready = self.site.replayer, self.site.replayer.ready
        replayer.observe(self.engine, *self.call, result)
        ending = self.engine.session.current.info.get("end")
        if ending is not None:
            ending.report.not_replayed = replayer.why_not
        if replayer.ready and not ready:
            self.site.trial.restart()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.plan == "building":
            _waiting.after_step(clock() - self.start)
        if self.plan in ("nested", "off", "building"):
            return
        if self.skipped:
            self.site.finished("predict", clock() - self.start, [self.site.replayer.last.ending], True)  # type: ignore[union-attr]
            return
        engine = self.engine
        if self.plan == "eager":
            if kind is None:
                self.site.finished("eager", clock() - self.start, [], False)
            return
        engine.mode.__exit__(None, None, None)
        if kind is not None:
            engine.abort()
            return
        engine.leave(self.reason, user_line())
        self.site.finished(self.plan, clock() - self.start, engine.endings, engine.replayed)


class Place:
    """Holds the sites of one place in the code: one for each thread, since threads do not share program trees."""

    def __init__(self, options: Options, name: str) -> None:
        self.options, self.name = options, name
        self._sites: dict[int, Site] = {}

    def idle(self) -> bool:
        """Does this thread have nothing to do here but run the user's code?"""
        site = self._sites.get(threading.get_ident())
        return site is not None and site.idle()

    def site(self, module: ModuleType) -> Site:
        """The site of the calling thread."""
        ident = threading.get_ident()
        if ident not in self._sites:
            self._sites[ident] = Site(module, self.options, self.name)
            if self.options.arena:
                heap.keep(module)
        return self._sites[ident]


def leave_alone(reason: str) -> None:
    """The step under way cannot be followed from here on, nor can later ones of its site: they run eagerly, as is said once."""
    engine = threads.active()
    if engine is None or engine.site is None:
        return
    engine.site.refused = True
    warn(f"training goes on eagerly: {reason}")
    engine.mode.__exit__(None, None, None)
    engine.leave("the step cannot be followed", user_line())


def hot_path(options: Options) -> Any:
    """The C++ part; None while it is being built in the background, or when it cannot be built (said once)."""
    global _builder
    if _broken is not None:
        return None
    cache = options.prepared_cache_dir()
    if native.is_built(cache) or not options.background or options.backend == "interpreter":
        return _load(cache)
    if _builder is None or not _builder.is_alive():
        _builder = threading.Thread(target=_load, args=(cache,), daemon=True, name="markstep-build")
        _builder.start()
    return None


def _load(cache: Path) -> Any:
    """Loads (and builds) the C++ part; whoever fails first says so, and nobody tries after that."""
    global _broken
    with _loading:
        if _broken is not None:
            return None
        try:
            return native.load(cache)
        except native.NativeUnavailable as error:
            _broken = str(error)
            warn(f"training goes on eagerly: {error}")
            return None


def warn(text: str) -> None:
    """One line in the log and in the report."""
    report.current().warnings.append(text)
    log.warning("%s", text)
