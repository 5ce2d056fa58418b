"""A collective that does not complete ends with an error that says what every process is doing.

Each process has a thread that looks into the store twice a second. Who has waited too long asks there; the threads of the
others answer with the stack of their main thread, also when that hangs. Who is gone has left a note, or is dead.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
import time
import traceback
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore

from markstep.engine.sources import innermost_line

_PERIOD_S = 0.5
_ANSWER_S = 4.0
_DEFAULT_LIMIT_S = 30.0


class StalledError(RuntimeError):
    """A collective did not complete; the message names the processes that it waits for and says where they are."""


_current: Watch | None = None


def stall_timeout() -> float:
    """Seconds that a process waits for the others: MARKSTEP_STALL_TIMEOUT, by default 30.

    Raises:
        ValueError: it is no positive number.
    """
    text = os.environ.get("MARKSTEP_STALL_TIMEOUT", "")
    try:
        seconds = float(text) if text else _DEFAULT_LIMIT_S
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ValueError(f"MARKSTEP_STALL_TIMEOUT={text!r} is no positive number of seconds")
    return seconds


def current() -> Watch:
    """That of this process, made at first use; torch.distributed has to be initialised."""
    global _current
    if _current is None or _current.process != os.getpid():
        store = dist.distributed_c10d._get_default_store()
        clone = getattr(store, "clone", None)  # a client of its own: another thread may wait in a call of the first one
        _current = Watch(clone() if clone is not None else store, dist.get_rank(), dist.get_world_size())
    return _current


class Watch:
    """Knows what this process does and asks the others. One for each process.

    Args:
        store: where the processes meet; not used for anything that blocks.
        rank: of this process.
        world: number of processes.
    """

    def __init__(self, store: Any, rank: int, world: int) -> None:
        self.rank, self.world, self.limit_s = rank, world, stall_timeout()
        self.process = os.getpid()
        self._store = PrefixStore("markstep/watch", store)
        self._started, self._waiting = 0, ""
        self._answered = 0
        self._main = threading.main_thread().ident
        self._over = False
        threading.Thread(target=self._answer, daemon=True, name="markstep-watch").start()
        atexit.register(self._leave)
        self._hook = sys.excepthook
        sys.excepthook = self._raised

    def started(self) -> int:
        """Counts a collective that this process has started; its number."""
        self._started += 1
        return self._started

    def wait(self, work: Any, what: str, number: int) -> None:
        """Waits for a collective.

        Raises:
            StalledError: it did not complete within the limit, or a process of it is gone.
        """
        self._waiting = f"in collective {number}: {what}"
        begin = time.monotonic()
        try:
            work.wait(timedelta(seconds=self.limit_s))
        except RuntimeError as error:
            raise StalledError(self._explain(what, number, time.monotonic() - begin, error)) from error
        self._waiting = ""

    # ------------------------------------------------------------ asking

    def _explain(self, what: str, number: int, seconds: float, error: Exception) -> str:
        states = self._ask()
        mine = states[self.rank]
        culprits = [r for r, s in enumerate(states) if not s["waiting"] or s["started"] != mine["started"]]
        names = ", ".join(map(str, culprits))
        if culprits:
            verdict = f"waits for rank {names}" if self.rank not in culprits else f"is alone in it; others: rank {names}"
        else:
            verdict = "all processes wait in it: the network between them, or one of them started another collective"
        lines = [f"collective {number} ({what}) did not complete after {seconds:.1f} s on rank {self.rank}: {verdict}"]
        lines += [f"  rank {r}: {s['text']}" for r, s in enumerate(states)]
        lines.append(f"  ({str(error).splitlines()[0]}; the limit is {self.limit_s:g} s, MARKSTEP_STALL_TIMEOUT changes it)")
        return "\n".join(lines)

    def _ask(self) -> list[dict[str, Any]]:
        states: list[dict[str, Any] | None] = [None] * self.world
        states[self.rank] = self._state()
        try:
            number = self._store.add("asked", 1)
            deadline = time.monotonic() + _ANSWER_S
            while None in states and time.monotonic() < deadline:
                for rank in (r for r, s in enumerate(states) if s is None):
                    for key in (f"state/{rank}/{number}", f"left/{rank}"):
                        if states[rank] is None and self._store.check([key]):
                            states[rank] = json.loads(self._store.get(key))
                time.sleep(0.05)
        except RuntimeError:
            pass  # the process that keeps the store is gone
        gone = {
            "text": "gives no sign of life: killed, stopped, or its machine cannot be reached",
            "waiting": False,
            "started": -1,
        }
        return [state or gone for state in states]

    def _answer(self) -> None:
        while not self._over:
            try:
                asked = self._store.add("asked", 0)
                for number in range(self._answered + 1, asked + 1):
                    self._store.set(f"state/{self.rank}/{number}", json.dumps(self._state()))
                self._answered = asked
            except RuntimeError:
                return  # the process that keeps the store has ended
            time.sleep(_PERIOD_S)

    # ------------------------------------------------------------ what this process does

    def _state(self) -> dict[str, Any]:
        frame = sys._current_frames().get(self._main or 0)
        stack = traceback.extract_stack(frame)
        files = [entry.filename for entry in stack]
        names = [entry.name for entry in stack]
        where = innermost_line(frame) or "unknown line"
        if self._waiting:
            doing = f"waits {self._waiting}"
        elif any(f.endswith(os.path.join("utils", "data", "dataloader.py")) for f in files):
            doing = "loads data"
        elif any(
            os.path.join("markstep", "checkpoint") in f or f.endswith(os.path.join("torch", "serialization.py")) for f in files
        ):
            doing = "reads or writes a checkpoint"
        elif "_shutdown" in names or not names:
            doing = "has left the program and waits for its threads"
        else:
            doing = "runs other code"
        calls = " < ".join(f"{os.path.basename(e.filename)}:{e.lineno} {e.name}" for e in reversed(stack[-6:]))
        text = (
            f"{doing}, at {where}; {self._started} collectives so far; process {os.getpid()} on {socket.gethostname()} [{calls}]"
        )
        return {"text": text, "waiting": bool(self._waiting), "started": self._started}

    def _note(self, text: str) -> None:
        if self._over:
            return
        self._over = True
        try:
            self._store.set(f"left/{self.rank}", json.dumps({"text": text, "waiting": False, "started": self._started}))
        except RuntimeError:
            pass

    def _leave(self) -> None:
        self._note(f"has left the program after {self._started} collectives; process {os.getpid()} on {socket.gethostname()}")

    def _raised(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        where = traceback.extract_tb(trace)[-1] if trace is not None else None
        at = f" at {where.filename}:{where.lineno}" if where is not None else ""
        self._note(f"ended with {kind.__name__}: {str(error).splitlines()[0] if str(error) else ''}{at}")
        self._hook(kind, error, trace)
