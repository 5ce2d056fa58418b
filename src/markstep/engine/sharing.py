"""Leaves the processors to the compiler for a small part of the time, while training needs all of them.

The compiler runs at a priority at which it gets what training leaves. Where training occupies every core, that is nothing,
and sharing a core through priorities is no way out: threads that wait for each other, spinning, lose several times what the
compiler wins. So training pauses between steps instead, and the compiler has all cores for a moment.
"""

from __future__ import annotations

import os
import time

_SHARE = 0.15
_SHORTEST = 0.2  # seconds; every change of turns costs both sides their caches


class Sharing:
    """Counts what training owes the compiler, and pays.

    Args:
        share: of training's time, at most.
    """

    def __init__(self, share: float = _SHARE) -> None:
        self._share = share
        self._debt = 0.0
        self._start()

    def _start(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def after_step(self, seconds: float) -> None:
        """Sleeps if need be; `seconds` is what the step took."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        used = cpu / wall if wall > 0 else 0.0
        self._start()
        unused = _cores() - used
        self._debt += self._share * seconds * min(1.0, max(0.0, 1.0 - unused))
        if self._debt >= _SHORTEST:
            time.sleep(self._debt)
            self._debt = 0.0
            self._start()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
