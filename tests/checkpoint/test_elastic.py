"""With torchrun's elastic restart, training resumes from the checkpoint and ends like an undisturbed run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def train(folder: Path, kill_at: int) -> list[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    command += ["--local-addr=127.0.0.1", "-m", "tests.checkpoint.elastic_script", str(folder), str(kill_at)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else restarted workers find addresses of those that died
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


@pytest.mark.slow
def test_a_killed_rank_is_restarted_and_ends_with_the_same_loss(tmp_path: Path) -> None:
    undisturbed, disturbed = train(tmp_path / "a", kill_at=0), train(tmp_path / "b", kill_at=7)
    assert [line for line in disturbed if "begins" in line] == [f"rank {r} begins at step {s}" for r in (0, 1) for s in (0, 6)]
    ends = [line for line in disturbed if "ends with" in line]
    assert len(ends) == 2 and ends == [line for line in undisturbed if "ends with" in line]
