"""The whole benchmark on the smallest model. Nothing about time is asserted."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench import cli, memory
from bench.process import ROOT, Process, WorkerError, environment

FIELDS = {
    *("model", "dtype", "contender", "step_ms", "ratio_to_eager", "ratio_low", "ratio_high", "peak_bytes"),
    *("first_step_s", "compile_s", "warm_s", "loss_difference", "before_ready_ratio", "machine", "commit", "torch"),
}


def spec(**more: Any) -> dict[str, Any]:
    base = {"model": "mlp", "dtype": "fp32", "device": "cpu", "contender": "eager"}
    return {**base, "seed": 0, "threads": 1, **more}


def test_a_worker_trains_on_command(tmp_path: Path) -> None:
    with Process(spec(), environment(1, tmp_path)) as worker:
        warm = worker.ask("warm", patience=60)
        assert warm["ready_s"] == 0.0
        assert worker.ask("steps", count=2)["seconds"] > 0
        with pytest.raises(WorkerError, match="unexpected keyword argument"):
            worker.ask("steps", number=2)
        final = worker.ask("finish")
    assert len(final["losses"]) == warm["warm_steps"] + 2
    assert final["anonymous_bytes"] > 0


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        Process(spec(model="nothing"), environment(1, tmp_path)) as worker,
        pytest.raises(WorkerError, match="nothing"),
    ):
        worker.ask("steps", count=1)


def test_a_worker_that_dies_says_so(tmp_path: Path) -> None:
    with Process(spec(), {**environment(1, tmp_path), "OMP_NUM_THREADS": "1"}) as worker:
        worker.built()
        worker._process.kill()
        with pytest.raises(WorkerError, match="ended with code -9"):
            worker.ask("steps", count=1)


def test_peak_memory_restarts() -> None:
    block = bytearray(64 << 20)
    block[::4096] = b"x" * len(block[::4096])
    high = memory.peak()
    del block
    memory.restart_peak()
    assert memory.peak() <= high
    assert memory.anonymous() > 0
    assert memory.peak_allocated() is None


def test_wrong_options(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments, message in (
        (["--models", "bert"], "unknown model bert"),
        (["--dtypes", "fp16"], "unknown dtype fp16"),
        (["--contenders", "jax"], "unknown contender jax"),
        (["--json", str(tmp_path / "no" / "rows.json")], "there is no folder"),
        (["--rounds", "0"], "'0' is not a whole number from 1 on"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_rows_of_markstep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MARKSTEP_BACKEND", "interpreter")
    monkeypatch.setenv("MARKSTEP_RNG", "torch")
    file = tmp_path / "rows.json"
    small = ["--models", "mlp", "--dtypes", "fp32", "--rounds", "2", "--turn", "0.01", "--threads", "1"]
    assert cli.main([*small, "--contenders", "markstep", "--json", str(file)]) == 0
    eager, ours = json.loads(file.read_text())
    assert FIELDS <= set(eager) and FIELDS <= set(ours)
    assert {"calls", "trace_us_per_call"} <= set(ours)
    assert eager["ratio_to_eager"] == 1.0
    assert ours["loss_difference"] == 0.0  # the interpreter computes what eager computes
    assert ours["loss_steps"] > 5
    assert ours["cold_s"] is not None and ours["warm_s"] is not None
    assert ours["calls"] > 30
    printed = capsys.readouterr().out
    assert "mlp" in printed and "geometric mean" in printed


@pytest.mark.slow
def test_a_terminated_run_cleans_up(tmp_path: Path) -> None:
    arguments = ["--models", "bert-base", "--dtypes", "fp32", "--contenders", "torch.compile"]
    with subprocess.Popen(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stderr is not None
        assert "starting processes" in run.stderr.readline()
        run.send_signal(signal.SIGTERM)
        _, said = run.communicate()
    assert "interrupted" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_contender_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARKSTEP_BACKEND", "magic")
    file = tmp_path / "rows.json"
    small = ["--models", "mlp", "--dtypes", "fp32", "--rounds", "1", "--turn", "0.01", "--once"]
    assert cli.main([*small, "--contenders", "markstep", "--json", str(file)]) == 1
    eager, ours = json.loads(file.read_text())
    assert eager["step_ms"] > 0
    assert "backend='magic' is not known" in ours["error"]


@pytest.mark.compile
@pytest.mark.slow
def test_gpu_script_rehearsed_with_torch_compile(tmp_path: Path) -> None:
    small = ["--models", "mlp", "--dtypes", "fp32", "--rounds", "1", "--turn", "0.01"]
    done = subprocess.run(
        [str(ROOT / "bench" / "gpu.sh"), "cpu", *small, "--contenders", "torch.compile"],
        env={**os.environ, "OUT": str(tmp_path), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    _, compiled = json.loads((tmp_path / "bench-cpu.json").read_text())
    assert compiled["contender"] == "torch.compile"
    assert compiled["compile_s"] > 0 and compiled["warm_s"] is not None
    assert "torch.compile" in (tmp_path / "bench-cpu.txt").read_text()
