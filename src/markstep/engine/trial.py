"""Measures at first use whether compiled steps beat eager ones; eager wins ties."""

from __future__ import annotations

from statistics import median
from typing import Any

_SAMPLES = 3
_MOST_SAMPLES = 25
_SECONDS = 0.5  # of each, so that a second's disturbance on a shared machine does not decide
_MARGIN = 0.98
_PATIENCE = 8


class Trial:
    """Alternates compiled and eager steps until their medians are known, then settles.

    At least three samples of each; more of short steps, whose times scatter. The first compiled step after a restart (page
    faults, lazy loading) is not counted. Steps that did not run compiled as a whole count only when there are no others.
    """

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {"predict": [], "eager": []}
        self.verdict: str | None = None
        self.warm = False
        self.last = "eager"
        self.partial = 0

    def restart(self) -> None:
        """A new program became ready."""
        self.__init__()  # type: ignore[misc]

    def next(self) -> str:
        """The plan for the next region."""
        if self.verdict is not None:
            return self.verdict
        return "predict" if self.last == "eager" or not self.warm else "eager"

    def add(self, mode: str, seconds: float, endings: list[Any], replayed: bool) -> bool:
        """A region ran; counts it when it was one or the other without recording. Did it decide the matter?"""
        if self.verdict is not None or mode not in self.times:
            return False
        self.last = mode
        if mode == "predict" and not replayed:
            self.partial += 1
            if self.partial < _PATIENCE:
                return False
        if mode == "predict" and not self.warm:
            self.warm = True
            return False
        self.times[mode].append(seconds)
        if all(_enough(t) for t in self.times.values()):
            self._settle(endings)
        return self.verdict is not None

    def _settle(self, endings: list[Any]) -> None:
        eager, compiled = median(self.times["eager"]), median(self.times["predict"])
        self.verdict = "predict" if compiled < _MARGIN * eager else "eager"
        for ending in endings:
            ending.report.eager_ms, ending.report.compiled_ms = eager * 1e3, compiled * 1e3
            if self.verdict == "eager":
                ending.report.state = "eager is faster"


def _enough(times: list[float]) -> bool:
    return len(times) >= _SAMPLES and (sum(times) >= _SECONDS or len(times) >= _MOST_SAMPLES)
