"""The output of workers: every line with the rank before it, as soon as it is written."""

from __future__ import annotations

import os
import selectors
import sys
import tempfile
import threading
import time
from typing import Any

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

__all__ = ["Outputs", "Relay"]

_PATIENCE = 1.0  # seconds after which an unfinished line, such as a progress bar, is shown
_LONGEST_TAIL = 2.0  # seconds in which output is still taken from what ended workers left running


class _Stream:
    def __init__(self, target: int, prefix: bytes) -> None:
        self.target, self.prefix = target, prefix
        self.rest = b""
        self.since = 0.0

    def take(self, data: bytes) -> None:
        self.since = self.since if self.rest else time.monotonic()
        *lines, self.rest = (self.rest + data).split(b"\n")
        self._write(lines)

    def hurry(self, patience: float) -> None:
        if self.rest and time.monotonic() - self.since >= patience:
            line, self.rest = self.rest, b""
            self._write([line])

    def _write(self, lines: list[bytes]) -> None:
        shown = b"".join(self.prefix + _as_seen(line) + b"\n" for line in lines)
        while shown:
            try:
                shown = shown[os.write(self.target, shown) :]
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                return  # nobody reads it any more; the workers go on


def _as_seen(line: bytes) -> bytes:
    """Without what carriage returns overwrite."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class Relay:
    """Copies pipes to the standard output and error of this process, line by line, in a thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._until = float("inf")

    def add(self, source: int, target: int, prefix: str) -> None:
        """Copies what comes from a pipe, which is closed at its end."""
        os.set_blocking(source, False)
        with self._lock:
            self._selector.register(source, selectors.EVENT_READ, _Stream(target, prefix.encode()))
        if self._thread is None:
            self._thread = threading.Thread(target=self._copy, name="markstep-output", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Returns when all that processes which have ended wrote is copied, and forgets the pipes."""
        if self._thread is not None:
            self._until = time.monotonic() + _LONGEST_TAIL
            self._thread.join()
            self._thread = None
            self._until = float("inf")

    def _copy(self) -> None:
        while True:
            ending = self._until < float("inf")  # before reading: what was written before `finish` is read after this
            ready = self._selector.select(0 if ending else 0.05)
            for key, _ in ready:
                self._read(key.fd, key.data)
            done = ending and (not ready or time.monotonic() > self._until)
            with self._lock:
                for key in list(self._selector.get_map().values()):
                    key.data.hurry(0 if done else _PATIENCE)
                    if done:
                        self._close(key.fd)
            if done:
                return

    def _read(self, source: int, stream: _Stream) -> None:
        try:
            data = os.read(source, 1 << 16)
        except BlockingIOError:
            return
        if data:
            stream.take(data)
        else:
            with self._lock:
                stream.hurry(0)
                self._close(source)

    def _close(self, source: int) -> None:
        self._selector.unregister(source)
        os.close(source)


class Outputs(LogsSpecs):
    """Where the agent of torch sends what its workers print and the exceptions that end them.

    Args:
        copied: copy it line by line; otherwise workers write to the launcher's terminal themselves.
        prefix: put "[rank]" before every line that is copied.
        environment: variables for the workers, in addition.
        several_hosts: there may be other hosts.
    """

    def __init__(self, *, copied: bool, prefix: bool, environment: dict[str, str], several_hosts: bool) -> None:
        super().__init__()
        self._copied = copied
        self.several_hosts = several_hosts
        self._prefix, self._environment = prefix, environment
        self._folder = tempfile.TemporaryDirectory(prefix="markstep-run-")
        self._relay = Relay()
        self._writing: list[int] = []

    @property
    def root_log_dir(self) -> str:
        """The folder of error files, removed by `close`."""
        return self._folder.name

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Prepares one start of all workers: pipes, error files, variables."""
        folder = tempfile.mkdtemp(dir=self._folder.name)
        errors = {local: os.path.join(folder, f"{local}.json") for local in envs}
        for local, env in envs.items():
            env.update(self._environment, TORCHELASTIC_ERROR_FILE=errors[local])
        out = {local: self._path(1, env["RANK"]) for local, env in envs.items()}
        err = {local: self._path(2, env["RANK"]) for local, env in envs.items()}
        empty: Any = {}
        return LogsDest(stdouts=out, stderrs=err, tee_stdouts=empty, tee_stderrs=dict(empty), error_files=errors)

    def _path(self, target: int, rank: str) -> str:
        if not self._copied:
            return ""
        reading, writing = os.pipe()
        self._relay.add(reading, target, f"[{rank}] " if self._prefix else "")
        self._writing.append(writing)
        return f"/dev/fd/{writing}"

    def started(self) -> None:
        """Workers have opened their pipes."""
        while self._writing:
            os.close(self._writing.pop())

    def finish(self) -> None:
        """Shows the last lines of workers that have ended."""
        self.started()
        self._relay.finish()
        sys.stdout.flush()

    def close(self) -> None:
        """Shows the last lines and removes the error files."""
        self.finish()
        self._folder.cleanup()
