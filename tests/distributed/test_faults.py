"""What goes wrong in one process ends the others with an error that names it, within the limit; nothing hangs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 5


@contextmanager
def job(fault: str, world: int = 2) -> Iterator[list[subprocess.Popen[str]]]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {**os.environ, "MARKSTEP_STALL_TIMEOUT": str(LIMIT_S), "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(ROOT / "tests/distributed/faults.py"), fault, str(rank), str(world), str(port)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
        )
        for rank in range(world)
    ]  # fmt: skip
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            with process:  # closes its pipes
                pass


def outcome(process: subprocess.Popen[str], limit_s: float = 60) -> tuple[int, str]:
    out, err = process.communicate(timeout=limit_s)
    return process.returncode, out + err


def test_without_a_fault_all_finish() -> None:
    with job("nothing") as processes:
        results = [outcome(p) for p in processes]
    assert [code for code, _ in results] == [0, 0], results
    assert "[" in results[0][1] and results[0][1].split("[")[1] == results[1][1].split("[")[1]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("exits early", ["rank 1: has left the program"]),
        ("raises", ["rank 1: ended with ValueError: a batch without labels", "faults.py:"]),
        ("is killed", ["rank 1: gives no sign of life"]),
        ("hangs in data loading", ["rank 1: loads data, at tests/distributed/faults.py:29"]),
    ],
)
def test_the_rank_at_fault_is_named(fault: str, said: list[str]) -> None:
    with job(fault) as processes:
        begin = time.monotonic()
        code, text = outcome(processes[0])
    assert code != 0 and "StalledError" in text, text
    assert "waits for rank 1" in text, text
    for words in said:
        assert words in text, text
    assert time.monotonic() - begin < 45


def test_processes_that_train_alone_are_told() -> None:
    with job("does not synchronise") as processes:
        results = [outcome(p) for p in processes]
    texts = [text for code, text in results if code != 0]
    assert texts, results
    assert all("the parameters of rank 1 differ from those of rank 0" in text or "StalledError" in text for text in texts), texts
    assert any("ReplicasDifferError" in text for text in texts)


def test_a_pause_below_the_limit_is_survived() -> None:
    with job("nothing") as processes:
        undisturbed = [outcome(p) for p in processes]
    with job("stops") as processes:
        assert processes[1].stdout is not None and processes[1].stdout.readline() == "stopping\n"
        time.sleep(LIMIT_S - 2)
        processes[1].send_signal(signal.SIGCONT)
        results = [outcome(p) for p in processes]
    assert [code for code, _ in results] == [0, 0], results
    assert [text.splitlines()[-1] for _, text in results] == [text.splitlines()[-1] for _, text in undisturbed]
