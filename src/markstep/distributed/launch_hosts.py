"""Starting the launcher on several hosts over ssh."""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from markstep.distributed.launch_agent import say
from markstep.distributed.launch_output import Relay

__all__ = ["FOLLOWS", "Host", "end_with_input", "parse_hosts", "run_on_hosts"]

FOLLOWS = "MARKSTEP_FOLLOWS"
"""Set for launchers that end when their standard input does: when the connection is lost or the first launcher ends."""
_FORWARDED = ("MARKSTEP", "OMP_", "PYTHONPATH", "NCCL_", "GLOO_", "TORCH_", "PJRT_DEVICE")
_PORTS = range(20000, 32000)  # below those that Linux gives to clients


@dataclass(frozen=True)
class Host:
    """One of `--hosts`.

    Attributes:
        name: as ssh takes it, perhaps with the user before it.
        nproc: processes on it; empty for that of `--nproc`.
    """

    name: str
    nproc: str = ""

    @property
    def address(self) -> str:
        """Without the user."""
        return self.name.rpartition("@")[2]


def parse_hosts(text: str) -> list[Host]:
    """The hosts of "a,b:4".

    Raises:
        ValueError: it names no host, or one twice.
    """
    hosts = [Host(name, nproc) for name, _, nproc in (part.strip().partition(":") for part in text.split(","))]
    names = [host.name for host in hosts]
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(f"--hosts {text}: give different names with commas between them, such as a,b:4 (4 processes on b)")
    if wrong := [host.nproc for host in hosts if host.nproc not in ("", "auto") and not host.nproc.isdecimal()]:
        raise ValueError(f"--hosts {text}: {wrong[0]!r} is no number of processes")
    return hosts


def run_on_hosts(
    hosts: Sequence[Host], options: Sequence[str], rest: Sequence[str], *, ssh: str, endpoint: str, grace: float
) -> int:
    """Runs `markstep run` on each host and copies its output; the status of the first one that fails.

    Args:
        hosts: where.
        options: of the launcher, equal on all hosts.
        rest: the script and its arguments.
        ssh: the command for ssh, with its options.
        endpoint: host:port where launchers meet, by default on the first host.
        grace: seconds to end.
    """
    endpoint = endpoint or f"{hosts[0].address}:{random.choice(_PORTS)}"
    relay = Relay()
    started: list[subprocess.Popen[bytes]] = []
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for host in hosts:
            command = _command(host, hosts, options, rest, endpoint)
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                [*shlex.split(ssh), host.name, command], stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
            started.append(process)
            for stream, target in ((process.stdout, 1), (process.stderr, 2)):
                assert stream is not None
                relay.add(os.dup(stream.fileno()), target, "")
                stream.close()
        status, failed = _wait(started)
        if status:
            say(f"host {hosts[failed].name}: its launcher ended with status {status}{_hint(status, ssh)}")
            _wait_for_all(started, grace + 5)
        return status
    except KeyboardInterrupt:
        say("interrupted: ending the workers of all hosts")
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGTERM, previous)
        _end(started, grace)
        relay.finish()


def _command(host: Host, hosts: Sequence[Host], options: Sequence[str], rest: Sequence[str], endpoint: str) -> str:
    forwarded = [f"{n}={v}" for n, v in sorted(os.environ.items()) if n.startswith(_FORWARDED)]
    own = ["--nnodes", str(len(hosts)), "--rdzv", endpoint, "--local-addr", host.address]
    own += ["--nproc", host.nproc] if host.nproc else []
    own += ["--rdzv-conf", f"is_host={str(host is hosts[0]).lower()}"]
    words = ["env", *forwarded, f"{FOLLOWS}=1", sys.executable, "-m", "markstep", "run", *options, *own, *rest]
    return f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(words)}"


def _hint(status: int, ssh: str) -> str:
    return f": {shlex.split(ssh)[0]} could not reach it, or the command is not there" if status in (127, 255) else ""


def _wait(started: Sequence[subprocess.Popen[bytes]]) -> tuple[int, int]:
    while True:
        statuses = [process.poll() for process in started]
        for i, status in enumerate(statuses):
            if status:
                return (status if status > 0 else 128 - status), i
        if None not in statuses:
            return 0, 0
        time.sleep(0.05)


def _wait_for_all(started: Sequence[subprocess.Popen[bytes]], longest: float) -> None:
    until = time.monotonic() + longest
    while time.monotonic() < until and any(process.poll() is None for process in started):
        time.sleep(0.05)


def _end(started: Sequence[subprocess.Popen[bytes]], grace: float) -> None:
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
    _wait_for_all(started, grace + 5)
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def end_with_input() -> None:
    """In a launcher that ssh started: ends it when its standard input is closed."""
    if not os.environ.pop(FOLLOWS, ""):
        return
    source = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)  # workers are not to read from it
    os.close(empty)

    def wait() -> None:
        while os.read(source, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="markstep-input", daemon=True).start()
