"""Who runs when: measures all contenders on one case."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.models import Case
from bench.process import Process, WorkerError, environment

_ALONE_S = 2.0  # seconds of eager training around a warm-up, to compare it with


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Attributes:
        contenders: besides eager, which always runs.
        rounds: how often everybody has a turn.
        turn_s: seconds of a turn; at least one step.
        patience_s: how long a warm-up may take.
        warm: measure a second process that finds the caches filled; otherwise there is only one with empty caches.
        trace: measure what following the calls costs.
        floor: measure what the products and the traffic of the step cost alone, see `bench.floor`.
        where: split eager's and Markstep's steps, see `bench.where`.
        loss_steps: go on until everybody has done this many steps, for comparing losses.
    """

    contenders: tuple[str, ...]
    device: str = "cpu"
    threads: int = 2
    rounds: int = 9
    turn_s: float = 0.5
    patience_s: float = 900.0
    warm: bool = True
    trace: bool = True
    floor: bool = False
    where: bool = False
    loss_steps: int = 0
    seed: int = 0


@dataclass
class Entrant:
    """What was measured of one contender.

    Attributes:
        cold: answer to `warm` of a process with empty caches; `warm` of a second one, empty when there was none.
        before_ratios: step time while Markstep compiles in the background over eager's before and after: of medians, of means.
        turns: seconds of a step, by round; at the same place in all entrants of a case.
        final: answer to `finish`.
        split: answer to `where`, empty when it was not asked.
        error: why it did not get to the end.
    """

    name: str
    cold: dict[str, Any] = field(default_factory=dict)
    warm: dict[str, Any] = field(default_factory=dict)
    before_ratios: list[float] | None = None
    turns: list[float] = field(default_factory=list)
    final: dict[str, Any] = field(default_factory=dict)
    split: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


class Match:
    """All contenders on one case: each is warmed up alone, then they take turns.

    Attributes:
        entrants: eager first.
        side, floor: what `bench.worker.Probe` measured.
        device: name of the device.
    """

    def __init__(self, case: Case, dtype: str, settings: Settings, folder: Path, say: Callable[[str], None]) -> None:
        self._case, self._dtype, self._settings, self._folder = case, dtype, settings, folder
        self._say = say
        self._first: dict[str, Process] = {}
        self._lasting: dict[str, Process] = {}
        self.entrants = [Entrant(name) for name in ("eager", *settings.contenders)]
        self.side: dict[str, Any] = {}
        self.floor: dict[str, Any] = {}
        self.device = "cpu"

    def run(self, optimizers: dict[str, str]) -> None:
        """Measures; `optimizers` keeps eager's faster AdamW by model.

        Raises:
            WorkerError: eager itself failed; that of others is in `Entrant.error`.
        """
        with ExitStack() as stack:
            self._start_all(stack)
            eager, process = self.entrants[0], self._lasting["eager"]
            self.device = process.built()["device"]
            self._probe(optimizers)
            process.ask("use", optimizer=optimizers[self._case.name])
            eager.cold = process.ask("warm", patience=self._settings.patience_s)
            for entrant in self.entrants[1:]:
                self._try(entrant, self._introduce)
            self._take_turns()
            for entrant in self._running():
                self._try(entrant, self._finish)
                if self._settings.where and entrant.name in ("eager", "markstep"):
                    self._split(entrant)
            if self._settings.floor:
                self._measure_floor()

    def _start_all(self, stack: ExitStack) -> None:
        """Starts every process side by side: imports and building models must not overlap with what is measured."""
        self._say("starting processes")
        others = self._settings.contenders
        for name in ("probe", "eager", *others):
            caches = self._folder / name / "markstep"
            caches.mkdir(parents=True)
            caches.chmod(0o700)
            for native in self._folder.parent.glob("native/*.so"):
                shutil.copy2(native, caches)
        self._first = {name: stack.enter_context(self._start(name)) for name in ("probe", *others)}
        again = ("eager", *others) if self._settings.warm else ("eager",)
        self._lasting = {name: stack.enter_context(self._start(name)) for name in again}
        for process in (*self._first.values(), *self._lasting.values()):
            with suppress(WorkerError):  # raised again by the first question
                process.built()

    def _start(self, contender: str) -> Process:
        spec = {
            "model": self._case.name,
            "dtype": self._dtype,
            "device": self._settings.device,
            "contender": contender,
            "seed": self._settings.seed,
            "threads": self._settings.threads,
        }
        return Process(spec, environment(self._settings.threads, self._folder / contender))

    def _probe(self, optimizers: dict[str, str]) -> None:
        """Side measurements: which AdamW eager gets, and what following the calls costs."""
        self._say("side measurements")
        with self._first["probe"] as probe:
            if self._settings.trace and "markstep" in self._settings.contenders:
                try:
                    self.side = probe.ask("trace")
                except WorkerError as error:
                    self.side = {"error": str(error)}
            if self._case.name not in optimizers:
                seconds = probe.ask("optimizer")
                optimizers[self._case.name] = min(seconds, key=lambda name: float(seconds[name]))

    def _introduce(self, entrant: Entrant) -> None:
        """Warms a contender up with empty caches, then a second process of it that stays for the turns."""
        self._say(f"{entrant.name}: first run, empty caches")
        eager = self._alone()
        process = self._first[entrant.name]
        entrant.cold = process.ask("warm", patience=self._settings.patience_s)
        if self._settings.warm:
            process.close()
            self._say(f"{entrant.name}: second run, caches filled")
            entrant.warm = self._lasting[entrant.name].ask("warm", patience=self._settings.patience_s)
        else:
            self._lasting[entrant.name] = process
        eager += self._alone()
        if entrant.name == "markstep" and entrant.cold["before_ready_s"] is not None:
            entrant.before_ratios = [seconds / median(eager) for seconds in entrant.cold["before_ready_s"]]

    def _measure_floor(self) -> None:
        self._say("products alone")
        with self._start("probe") as probe:
            try:
                self.floor = probe.ask("floor")
            except WorkerError as error:
                self.floor = {"error": str(error)}
                self._say(f"no floor: {str(error).splitlines()[-1]}")

    def _split(self, entrant: Entrant) -> None:
        self._say(f"{entrant.name}: where the time goes")
        steps = max(2, min(100, round(2.0 / entrant.turns[-1])))
        try:
            entrant.split = self._lasting[entrant.name].ask("where", steps=steps)
        except WorkerError as error:
            self._say(f"{entrant.name}: not split: {str(error).splitlines()[-1]}")

    def _alone(self) -> list[float]:
        """Eager's steps for a while, without the first: the process has been idle."""
        times = [self._turn("eager", 1)]
        while len(times) < 4 or sum(times) < _ALONE_S:
            times.append(self._turn("eager", 1))
        return times[1:]

    def _turn(self, name: str, steps: int) -> float:
        return float(self._lasting[name].ask("steps", count=steps)["seconds"])

    def _running(self) -> list[Entrant]:
        return [e for e in self.entrants if e.error is None]

    def _take_turns(self) -> None:
        self._say("taking turns")
        steps = max(1, round(self._settings.turn_s / self._turn("eager", 1)))
        for _ in range(self._settings.rounds):
            for entrant in self._running():
                self._try(entrant, lambda e: e.turns.append(self._turn(e.name, steps)))

    def _finish(self, entrant: Entrant) -> None:
        process = self._lasting[entrant.name]
        entrant.final = process.ask("finish")
        missing = self._settings.loss_steps - len(entrant.final["losses"])
        if missing > 0:
            self._say(f"{entrant.name}: {missing} more steps to compare losses")
            process.ask("steps", count=missing)
            entrant.final["losses"] = process.ask("finish")["losses"]

    def _try(self, entrant: Entrant, work: Callable[[Entrant], object]) -> None:
        try:
            work(entrant)
        except WorkerError as error:
            if entrant.name == "eager":
                raise
            entrant.error = str(error)
            self._say(f"{entrant.name}: failed: {entrant.error.splitlines()[-1]}")


def measure(
    case: Case, dtype: str, settings: Settings, folder: Path, optimizers: dict[str, str], say: Callable[[str], None]
) -> Match:
    """Runs a match with its caches in a folder of its own below `folder`, which is removed afterwards.

    Raises:
        WorkerError: eager PyTorch failed.
    """
    own = folder / f"{case.name}-{dtype}"
    match = Match(case, dtype, settings, own, say)
    try:
        match.run(optimizers)
    finally:
        shutil.rmtree(own, ignore_errors=True)
    return match
