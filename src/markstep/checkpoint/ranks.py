"""The processes that save or load together: what happens in one, all get to know."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from markstep.checkpoint.errors import CheckpointError
from markstep.checkpoint.random_state import settled

_made: tuple[Any, float, Any] | None = None  # the default group, the timeout, and our own group for the two


@dataclass(frozen=True)
class Ranks:
    """The processes of a training.

    Attributes:
        rank: of this process.
        size: how many there are.
        group: of torch.distributed, on the CPU; None for a process alone, and where the xla device connects them.
    """

    rank: int
    size: int
    group: Any = None

    def together(self, doing: str, fn: Callable[[], Any]) -> list[Any]:
        """Calls `fn` in every process, and returns the results of all, by rank. A failure in one is raised in all.

        Args:
            doing: what is done, for errors.
            fn: its result must be picklable.

        Raises:
            CheckpointError: it failed in some process, which the message names, or a process does not answer.
        """
        if self.size == 1:
            try:
                return [fn()]
            except OSError as error:
                raise CheckpointError(f"{doing} failed: {error}") from error
        result, failure = None, None
        try:
            result = fn()
        except Exception as error:  # noqa: BLE001
            failure = error
        text = None if failure is None else f"{type(failure).__name__}: {failure}"
        with settled():
            answers = self._gather(doing, (text, result), failure)
        failed = [(rank, text) for rank, (text, _) in enumerate(answers) if text is not None]
        if failed:
            raise CheckpointError(
                f"{doing} failed in {'; '.join(f'rank {rank} of {self.size}: {text}' for rank, text in failed)}"
            ) from failure
        return [result for _, result in answers]

    def first(self, doing: str, fn: Callable[[], Any]) -> Any:
        """Calls `fn` in rank 0 only; all get its result or error."""
        return self.together(doing, fn if self.rank == 0 else lambda: None)[0]

    def _gather(self, doing: str, answer: Any, failure: Exception | None) -> list[Any]:
        try:
            if self.group is None:
                from markstep.xla import collectives

                payloads = collectives.gather_bytes(pickle.dumps(answer), tuple(range(self.size)))
                return [pickle.loads(p) for p in payloads]
            answers: list[Any] = [None] * self.size
            dist.all_gather_object(answers, answer, group=self.group)
            return answers
        except RuntimeError as error:
            own = "" if failure is None else f"rank {self.rank}: {type(failure).__name__}: {failure}; and "
            raise CheckpointError(
                f"{doing} failed: {own}another process has ended, or does not take part (all {self.size} have to call this, "
                f"rank 0 alone is not enough): {error}"
            ) from error


def current(timeout: float) -> Ranks:
    """The processes that torch.distributed, or the xla device, has connected with this one.

    Args:
        timeout: seconds that a process waits for the others.

    Raises:
        RuntimeError: several processes were started, but are not connected.
    """
    if dist.is_available() and dist.is_initialized():
        size = dist.get_world_size()
        return Ranks(dist.get_rank(), size, _group(timeout) if size > 1 else None)
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size > 1 and "markstep.xla.processes" not in sys.modules:
        raise RuntimeError(
            f"WORLD_SIZE={size}: several processes were started, but they are not connected, and would write the same files. "
            "Call torch.distributed.init_process_group first"
        )
    return Ranks(int(os.environ.get("RANK", 0)) if size > 1 else 0, size)


def _group(timeout: float) -> Any:
    """A group of our own: on the CPU whatever the training uses, and with its own timeout."""
    global _made
    default = dist.group.WORLD
    if _made is None or _made[0] is not default or _made[1] != timeout:
        _made = default, timeout, dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
    return _made[2]
