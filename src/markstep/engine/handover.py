"""Tensors that go to another thread or process must have their values first: only the step's own thread can compute them.

Threads hand things over through a few functions of the standard library. While a step is under way in the calling thread,
each of them ends the program. Installed once; outside of steps each costs one attribute look-up.
"""

from __future__ import annotations

import functools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from markstep.engine import threads
from markstep.engine.sources import user_line


def install() -> None:
    """Wraps the functions. Queues, events and futures all notify a `threading.Condition`."""
    _wrap(threading.Thread, "start", "a thread is started")
    _wrap(threading.Condition, "notify", "another thread is woken up")
    _wrap(ThreadPoolExecutor, "submit", "work is given to a thread pool")
    os.register_at_fork(before=lambda: _flush("the process is forked"), after_in_child=threads.forget)
    delete = threading.Thread._delete  # type: ignore[attr-defined]  # a thread's own last act

    def wrapper(thread: threading.Thread) -> None:
        try:
            _leave()
        finally:
            delete(thread)

    threading.Thread._delete = wrapper  # type: ignore[attr-defined]


def _wrap(owner: type, name: str, reason: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        engine = threads.active()
        if engine is not None and not engine.paused:  # a DataLoader that wakes its workers hands over nothing of the step
            _flush(reason)
        return original(*args, **kwargs)

    setattr(owner, name, wrapper)


def _flush(reason: str) -> None:
    engine = threads.active()
    if engine is not None and engine.session.length:
        engine.boundary(reason, user_line())


def _leave() -> None:
    engine = threads.active()
    if engine is not None:
        engine.mode.__exit__(None, None, None)
        engine.leave("end of the thread", user_line())
