"""One place that trains (a compiled function, a `with markstep.step()` line, a script): its program tree and its policy."""

from __future__ import annotations

import logging
import time
from types import ModuleType
from typing import Any

from markstep.engine import agreement, heap, report
from markstep.engine.agreement import Agreement
from markstep.engine.ending import Ending, Interpreted
from markstep.engine.options import Options
from markstep.engine.replay import Replayer
from markstep.engine.sharing import Sharing
from markstep.engine.trial import Trial

log = logging.getLogger("markstep")
_RECORDINGS = 2
_PATIENCE = 40
_FIRST_LOOK = 1000


class Site:
    """Decides for every region whether it is recorded, predicted or left alone.

    Attributes:
        root: root of the program tree.
        predictable: at least one program can run from here.
        agreement: set where several processes run this step together.
        refused: its steps cannot be followed, as has been said; they run eagerly.
        differed: the last step did not run as they had agreed, so that their parameters may differ by rounding.
    """

    def __init__(self, native: ModuleType, options: Options, name: str) -> None:
        self.options, self.name = options, name
        self.root: Any = native.Node(None, None, None, 0, False)
        self.predictable = False
        self.agreement: Agreement | None = None
        self.differed = self.refused = False
        self.last = "record"
        self.compiling: list[Ending] = []
        self.sharing: Sharing | None = None
        self.trial = Trial()
        self.replayer = Replayer()
        self.fruitless = 0
        self.skip = 0
        self.rested, self.rest = 0, _FIRST_LOOK

    def idle(self) -> bool:
        """Is it settled that the next step runs eagerly? Then there is nothing to follow, measure or wait for.

        Now and then, more and more rarely, a step is looked at all the same: it may have become another one.
        """
        if self.refused:
            return True
        if self.trial.verdict != "eager" or self.compiling or self.agreement is not None:
            return False
        self.rested += 1
        agreement.begin(None)
        return self.rested <= self.rest

    def plan(self) -> str:
        """What to do with the next region: "predict", "record" or "eager" (leave it alone)."""
        if self.refused:
            return "eager"
        agreement.begin(self)
        plan = self._own_plan()
        if self.agreement is not None and self.agreement.together() != (plan == "predict"):
            if plan == "predict":
                plan = "eager"
            elif self.predictable:
                plan = "predict"
            else:
                self.differed = True  # the others run a program that this process has just lost
        self.last = plan
        return plan

    def is_able(self) -> bool:
        """With an agreement: can the next step run compiled here, and, where this process decides, should it?"""
        if not self.predictable or self.options.backend == "eager":
            return False
        if self.agreement is None or not self.agreement.first or self.options.backend == "interpreter":
            return True
        if self.trial.verdict is not None:
            return self.trial.verdict == "predict"
        return self.last != "predict" or not self.trial.warm

    def _own_plan(self) -> str:
        self._poll()
        if self.options.backend == "eager":
            self.fruitless += 1
            return "record" if self.fruitless <= 3 else "eager"
        if self.options.backend == "interpreter" and self.predictable:
            return "predict"
        if self.skip:
            self.skip -= 1
            return "eager"
        if self.trial.verdict == "eager" and not self.compiling:
            return "record" if self.agreement is None else "eager"  # see `idle`
        if self.predictable:
            return self.trial.next()
        return "eager" if self.compiling else "record"

    def seen(self, ending: Ending) -> None:
        """A boundary was met; compiles its program once it is known well enough."""
        if ending.executable is not None or ending.job is not None or ending.rejected or ending.seen < _RECORDINGS:
            return
        if self.options.backend == "interpreter":
            ending.executable = Interpreted(ending.program())
            ending.report.state = "ready"
            self.predictable = True
        elif self.options.backend == "inductor":
            self._compile(ending)

    def finished(self, mode: str, seconds: float, endings: list[Ending], replayed: bool) -> None:
        """A region of the given plan has ended."""
        figures = report.current()
        self.differed |= mode == "predict" and not replayed
        if mode == "predict" and replayed:
            figures.compiled_steps += 1
            self.fruitless = 0
        else:
            figures.eager_steps += 1
        if mode == "record" and self.options.backend != "eager":
            self.fruitless += 1
            if self.fruitless >= _PATIENCE:
                self.skip = min(2 ** (self.fruitless - _PATIENCE), 1024)
        if mode == "record" and self.trial.verdict == "eager" and not any(_is_new(e) for e in endings):
            self.rested, self.rest = 0, 2 * self.rest
        if self.options.backend == "inductor":
            settled = self.trial.add(mode, seconds, endings, replayed)
            if settled or (mode == "record" and self.fruitless <= _RECORDINGS):
                heap.trim()
            self._share(seconds)

    def _share(self, seconds: float) -> None:
        if not self.compiling:
            self.sharing = None
        elif self.sharing is None:
            self.sharing = Sharing()
        else:
            self.sharing.after_step(seconds)

    def _compile(self, ending: Ending) -> None:
        from markstep.codegen import submit

        ending.job = submit(ending.program(), self.options, ending.report)
        ending.report.state = "compiling"
        self.compiling.append(ending)
        if not self.options.background:
            ending.job.wait()
            self._poll()

    def _poll(self) -> None:
        for ending in list(self.compiling):
            if ending.job is None:  # the tree has changed meanwhile
                self.compiling.remove(ending)
                continue
            executable = ending.job.poll()
            if executable is None and not ending.job.failed:
                continue
            self.compiling.remove(ending)
            if ending.job.failed:
                ending.rejected = True
            else:
                ending.executable = executable
                ending.report.state = "ready"
                self.predictable = True
                self.trial.restart()
                heap.trim()
            ending.job = None


def _is_new(ending: Ending) -> bool:
    return ending.seen < _RECORDINGS and ending.executable is None and not ending.rejected


def clock() -> float:
    """Seconds; waits for the accelerator first when one is used, so that differences are of finished work."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()
