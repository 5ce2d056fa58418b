"""The parent's end of a worker process."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_LIMIT_S = 3600.0


class WorkerError(RuntimeError):
    """A worker failed; the message has what it said."""


def environment(threads: int, caches: Path) -> dict[str, str]:
    """Of a worker: fixed threads, compilers' caches below `caches`."""
    import markstep

    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "MARKSTEP_CACHE_DIR": str(caches / "markstep"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(markstep.__file__).parent.parent)]),
    }


def of_xla_scripts(threads: int, caches: Path, torch_xla: str | None) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Interpreter command and environment of those that run scripts written for torch_xla.

    "xla" is Markstep's device, "eager" plain Python, "torch_xla" the given interpreter of another environment, if any.
    """
    env = {**environment(threads, caches), "PJRT_DEVICE": "CPU"}
    found = {"xla": ([sys.executable, "-m", "markstep", "run"], env), "eager": ([sys.executable], env)}
    if torch_xla is not None:
        found["torch_xla"] = ([torch_xla], {**env, "PYTHONPATH": str(ROOT)})
    return found


class Process:
    """Starts `bench.worker` and asks it things; a context manager that ends it."""

    def __init__(self, spec: Mapping[str, Any], env: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.worker", json.dumps(dict(spec))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            env=dict(env),
            text=True,
            start_new_session=True,
        )
        self._greeting: dict[str, Any] | None = None

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """The answer to a command of `bench.worker.Worker`.

        Raises:
            WorkerError: the command failed, the process died or it did not answer within an hour.
        """
        self.built()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(self._died()) from None
        return _checked(self._answer())

    def built(self) -> dict[str, Any]:
        """Waits until the model is built; `device` is the name of its device.

        Raises:
            WorkerError: as `ask`.
        """
        if self._greeting is None:
            self._greeting = self._answer()
        return _checked(self._greeting)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], _LIMIT_S)[0]:
            return {"error": f"no answer within {_LIMIT_S:.0f} s"}
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": self._died()}
        return answer

    def _died(self) -> str:
        """What it left behind. It stays a zombie until `close`, so that its number still belongs to it."""
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        code = ended.si_status if ended.si_code == os.CLD_EXITED else f"-{ended.si_status}"
        self._log.seek(0)
        return f"the process ended with code {code}: {self._log.read().strip()[-2000:]}"

    def close(self) -> None:
        """Ends the process and what it started; once is enough, more often does no harm."""
        if self._process.returncode is not None:
            return
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not _has_exited(self._process.pid):
            time.sleep(0.02)
        # The session was started above; a compiler that was left behind ends too.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise WorkerError(answer["error"].strip())
    return answer


def _has_exited(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
