"""Processes change between eager and compiled steps together, and are made equal again after a step that some ran otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import markstep
from markstep.distributed import watch
from markstep.engine import agreement


class Lockstep:
    """Exchanges two numbers in every step: can I run the next one compiled, and did I run the last one as agreed?

    The exchange starts in forward and its result is taken when the next step begins, so nobody waits for it.

    Args:
        group: a gloo group of its own.
        repair: makes parameters and optimizer state equal in all processes; called in all or none.

    Attributes:
        first: see `markstep.engine.agreement.Agreement`.
        repairs: how often `repair` was called.
    """

    def __init__(self, group: Any, repair: Callable[[], None]) -> None:
        self.first = group.rank() == 0
        self.repairs = 0
        self._backend, self._repair = group._get_backend(torch.device("cpu")), repair
        self._numbers = torch.zeros(2, dtype=torch.int64)
        self._array = self._numbers.numpy()
        self._work: Any = None
        self._number = 0
        self._together = False

    def exchange(self) -> None:
        """In every forward of a training step, in all processes."""
        self._finish()
        site, able, same = agreement.begun(), False, True
        if site is not None:
            site.agreement = self
            able, same, site.differed = site.is_able(), not site.differed, False
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MIN)
        self._array[:] = able, same
        self._work = self._backend.allreduce([self._numbers], options)
        self._number = watch.current().started()

    def together(self) -> bool:
        """See `Agreement`."""
        self._finish()
        return self._together

    def _finish(self) -> None:
        if self._work is None:
            return
        work, self._work = self._work, None
        watch.current().wait(work, "agreement on the next step", self._number)
        self._together = bool(self._array[0])
        if not self._array[1]:
            self.repairs += 1
            with markstep.pause():
                self._repair()
