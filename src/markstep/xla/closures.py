"""Functions that run when a step has ended, on values that are there by then."""

from __future__ import annotations

import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

Closure = Callable[[], object]


class ClosureHandler(ABC):
    """Runs closures."""

    @abstractmethod
    def run(self, closure: Closure) -> None:
        """Runs one closure, now or later."""

    def run_all(self, closures: Iterable[Closure]) -> None:
        """Runs closures in order."""
        for closure in closures:
            self.run(closure)


class AsyncClosureHandler(ClosureHandler):
    """Runs closures in order in one thread of its own, which ends when there is nothing to do.

    Args:
        max_queue_size: closures that may wait; `run` blocks when there are more. XLA_MAX_ASYNC_QUEUE overrides it.
    """

    def __init__(self, max_queue_size: int = 100) -> None:
        super().__init__()
        self._waiting: queue.Queue[Closure] = queue.Queue(int(os.environ.get("XLA_MAX_ASYNC_QUEUE", max_queue_size)))
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def run(self, closure: Closure) -> None:
        """Hands a closure to the thread.

        Raises:
            RuntimeError: an earlier closure failed; `closure` is not run.
        """
        self._raise_earlier()
        self._waiting.put(closure)
        self.start_event_loop()

    def start_event_loop(self) -> None:
        """Starts the thread if it does not run."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="step closures")
                self._thread.start()

    def _raise_earlier(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise RuntimeError("an asynchronous step closure failed") from error

    def _loop(self) -> None:
        while True:
            try:
                closure = self._waiting.get(timeout=0.5)
            except queue.Empty:
                with self._lock:
                    if self._waiting.empty():
                        self._thread = None
                        return
                continue
            try:
                closure()
            except BaseException as error:  # shown by the next call of `run`
                self._error = error
            finally:
                self._waiting.task_done()


# Of the device, not of a thread: a checkpointed forward runs again in a thread of autograd's.
_now: list[Closure] = []
_later: list[Closure] = []
_adding = threading.Lock()
_handler = AsyncClosureHandler()


def add_step_closure(closure: Callable[..., Any], args: tuple[Any, ...] = (), run_async: bool = False) -> None:
    """Queues `closure(*args)` until the current step has ended, so that printing a loss does not end it early.

    Args:
        closure: what to call.
        args: its arguments, usually tensors of the step.
        run_async: run it in a thread of its own, while the next step goes on. An error in it is raised at the end of the
            next step that has such closures.
    """
    with _adding:
        (_later if run_async else _now).append(lambda: closure(*args))


def run_step_closures() -> None:
    """Called when a step has ended: asynchronous closures are handed over, then the others run in order.

    Raises:
        RuntimeError: an asynchronous closure of an earlier step failed.
    """
    global _now, _later
    with _adding:
        now, later, _now, _later = _now, _later, [], []
    _handler.run_all(later)
    for closure in now:
        closure()
