"""How a worker failed: written down in the worker, read and told by its launcher."""

from __future__ import annotations

import json
import os
import re
import signal
import textwrap
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

__all__ = ["Failure", "read", "record", "report"]

_LOST_PEER = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Connection refused|Connection was likely closed|"
    r"ncclRemoteError|NCCL communicator was aborted|Timed out waiting \d+ms|recvValue failed|sendBytes failed|DistNetworkError",
    re.IGNORECASE,
)
_LONGEST_SUMMARY = 160
_MEMORY = (
    "SIGKILL comes from outside of the program, mostly from the kernel because memory ran out (`dmesg | grep -i oom` tells): "
    "use a smaller batch, fewer workers, or fewer DataLoader workers"
)


@dataclass(frozen=True)
class Failure:
    """One worker's end.

    Attributes:
        rank: among all workers.
        host: where it ran.
        pid: its process.
        status: exit status, or minus the number of the signal that ended it; None if it was still ending.
        time: seconds since the epoch.
        trace: traceback of its exception, if it had one.
    """

    rank: int
    host: str
    pid: int
    status: int | None
    time: float
    trace: str = ""

    @property
    def lost_peer(self) -> bool:
        """Whether it failed because another process had gone."""
        return _LOST_PEER.search(self.trace) is not None

    @property
    def exit_status(self) -> int:
        """What a shell would show, never 0."""
        status = self.status or 1
        return status if status > 0 else 128 - status

    def how(self) -> str:
        """In a few words: the exit status or the signal."""
        if self.status is None:
            return "an exception"
        if self.status >= 0:
            return f"exit status {self.status}"
        try:
            return f"ended by {signal.Signals(-self.status).name}"
        except ValueError:
            return f"ended by signal {-self.status}"

    def summary(self) -> str:
        """In one line: its exception, or how it ended."""
        lines = [line for line in self.trace.splitlines() if line and not line.startswith(" ")]
        return textwrap.shorten(lines[-1], _LONGEST_SUMMARY, placeholder=" ...") if lines else self.how()

    def to_json(self) -> str:
        """As text for another launcher."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Failure:
        """What `to_json` wrote."""
        return cls(**json.loads(text))


def record(error: BaseException, trace: TracebackType | None) -> None:
    """Writes the exception that ends this worker where its launcher, Markstep's or torchrun, looks for it."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    now = time.time()
    details = {
        "py_callstack": "".join(traceback.format_exception(type(error), error, trace)),
        "timestamp": str(int(now)),
        "time": now,
    }
    try:
        Path(f"{path}.part").write_text(json.dumps({"message": {"message": _named(error), "extraInfo": details}}))
        os.replace(f"{path}.part", path)
    except OSError:
        pass  # the exception itself is what matters


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def read(path: str) -> tuple[float, str] | None:
    """Time and traceback that a worker wrote down, if it did."""
    try:
        details = json.loads(Path(path).read_text())["message"]["extraInfo"]
        return float(details.get("time", details["timestamp"])), str(details["py_callstack"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def report(first: Failure, others: Mapping[int, str], *, here: bool, several_hosts: bool) -> str:
    """The text for the end of a failed run.

    Args:
        first: the worker that failed first.
        others: what became of the other workers of this host.
        here: the first one ran on this host, so that its whole traceback is shown.
        several_hosts: there are other hosts.
    """
    lines = ["", f"markstep: rank {first.rank} failed first (host {first.host}, pid {first.pid}): {first.how()}"]
    if first.trace and here:
        lines += [f"    {line}" for line in first.trace.rstrip().splitlines()]
    elif first.trace:
        lines += [f"    {first.summary()}", f"    the whole traceback is in the output of host {first.host}"]
    if first.status in (-signal.SIGKILL, 128 + signal.SIGKILL):
        lines.append(f"    {_MEMORY}")
    if first.lost_peer:
        lines.append("    The message names a lost connection: another process or host went away without saying why.")
    for what in dict.fromkeys(others.values()):
        lines.append(f"markstep: {_ranks([r for r, w in others.items() if w == what])} {what}")
    if several_hosts:
        lines.append("markstep: the workers of the other hosts are ended, too")
    return "\n".join(lines)


def _ranks(ranks: Sequence[int]) -> str:
    names = ", ".join(map(str, sorted(ranks)))
    return f"ranks {names}:" if len(ranks) > 1 else f"rank {names}:"
