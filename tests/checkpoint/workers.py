"""Processes that save and load together, started in milliseconds and never longer alive than a limit."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")  # forks from a process that has torch imported and no threads
CONTEXT.set_forkserver_preload(
    [
        "pytest",
        "torch._dynamo",  # which the first optimizer imports
        "torch.distributed.fsdp",
        "markstep.checkpoint",
        "tests.helpers",
        "tests.checkpoint.training",
        "tests.checkpoint.workers",
    ]
)


class Died(Exception):
    """A process ended without an answer."""


class Ranks:
    """Processes that torch.distributed connects with gloo.

    Attributes:
        processes: by rank.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], size: int, store: Path) -> None:
        self.processes: list[Any] = []
        self._pipes = []
        for rank in range(size):
            ours, theirs = CONTEXT.Pipe(duplex=False)
            process = CONTEXT.Process(target=_work, args=(theirs, fn, rank, size, str(store), args), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self._pipes.append(ours)

    def answers(self, limit: float) -> list[Any]:
        """What each has returned, `Died` for one that ended without; all are gone then.

        Raises:
            AssertionError: one raised an error, or did not answer within `limit` seconds.
        """
        deadline = time.monotonic() + limit
        try:
            found = [_answer(pipe, deadline) for pipe in self._pipes]
        finally:
            self.end()
        for rank, answer in enumerate(found):
            assert not isinstance(answer, str), f"rank {rank}: {answer}"
        return [answer if answer is Died else answer[0] for answer in found]

    def end(self) -> None:
        """Kills those that are left."""
        for process in self.processes:
            process.kill()
            process.join()


def start(fn: Callable[..., Any], *args: Any, size: int, folder: Path) -> Ranks:
    """Calls `fn(rank, *args)` in `size` processes, which find each other through a file in `folder`."""
    return Ranks(fn, args, size, folder / f"store-{time.monotonic_ns()}")


def run(fn: Callable[..., Any], *args: Any, size: int, folder: Path, limit: float = 60, survive: bool = False) -> list[Any]:
    """Calls `fn(rank, *args)` in `size` processes; the results by rank.

    Args:
        fn: a function of a module.
        *args: picklable.
        size: number of processes.
        folder: for the file through which they find each other.
        limit: seconds after which all are killed.
        survive: a process may die.
    """
    answers = start(fn, *args, size=size, folder=folder).answers(limit)
    assert survive or Died not in answers, answers
    return answers


def _answer(pipe: Any, deadline: float) -> Any:
    try:
        ready = pipe.poll(max(0.0, deadline - time.monotonic()))
        return pickle.loads(pipe.recv_bytes()) if ready else "no answer in time"
    except EOFError:
        return Died


def _work(pipe: Any, fn: Callable[..., Any], rank: int, size: int, store: str, args: tuple[Any, ...]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=30))
        answer: Any = (fn(rank, *args),)
    except BaseException:
        answer = traceback.format_exc()
    pipe.send_bytes(pickle.dumps(answer))  # `send` would share the memory of tensors with a process that ends
    pipe.close()
    os._exit(0)  # without waiting for processes that have died
