"""`tools/upstream.py`, on a checkout that is made up here: what it counts as passed, and that a crash costs one test."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

_TOOLS = Path(__file__).resolve().parents[2] / "tools"
_TESTS = """
import os, signal, unittest
import torch, torch_xla
from absl.testing import parameterized

class TestDevices(parameterized.TestCase):
    @parameterized.parameters((1, 2), (2, 4), (3, 5))
    def test_device(self, a, b):
        self.assertEqual((torch.ones((), device="xla") * a * 2).item(), b)

    def test_devices(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def test_real_devices(self):
        for i in range(2):
            with self.subTest(i=i):
                self.assertEqual(i, 1)

    def test_step(self):
        self.skipTest("not today")

    def test_sync(self):
        torch_xla.sync()
"""


def upstream(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(_TOOLS / "upstream.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_what_is_out_of_scope_passes_upstream() -> None:
    names = {n for path in (_TOOLS / "upstream_passes").glob("*.txt") for n in path.read_text().split()}
    out_of_scope = runpy.run_path(str(_TOOLS / "upstream_scope.py"))["OUT_OF_SCOPE"]
    assert len(names) == 717
    assert set(out_of_scope) <= names
    assert all(out_of_scope.values())


def test_without_a_checkout_it_says_where_to_get_one(tmp_path: Path) -> None:
    for arguments in ((), (str(tmp_path),)):
        done = upstream(*arguments)
        assert done.returncode == 2
        assert "git clone" in done.stderr and "make upstream TORCH_XLA=" in done.stderr


@pytest.mark.slow
def test_score(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_operations.py").touch()
    (tmp_path / "test" / "test_devices.py").write_text(_TESTS)
    done = upstream(str(tmp_path), "--only", "test_devices", "--json", str(tmp_path / "out.json"))
    assert done.returncode == 1, done.stderr
    *lines, last = done.stdout.splitlines()
    assert last == "upstream: 3 of 10 (30.0 %) of what torch_xla 2.9.0 passes"
    failed = {line.split("::")[-1].split(":")[0]: line for line in lines if line.startswith("  ")}
    assert "5" in failed["test_device2"] and "status -9" in failed["test_devices"] and "0 != 1" in failed["test_real_devices"]
    assert "skipped" in failed["test_step"] and "was not run" in failed["test_trivial_model"]
    assert json.loads((tmp_path / "out.json").read_text())["passed"] == 3
