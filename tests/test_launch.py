"""`markstep run` on unmodified scripts (in `scripts/`): everything they compute equals what native PyTorch computes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.helpers import assert_same, snapshot

pytestmark = pytest.mark.slow  # processes that import much

_SCRIPTS = Path(__file__).parent / "scripts"
_COMMAND = [sys.executable, "-c", "import sys; from markstep.cli import main; sys.exit(main())", "run"]
_EXACT = {"MARKSTEP_BACKEND": "interpreter", "MARKSTEP_RNG": "torch"}


class Run(NamedTuple):
    results: dict[str, Any]
    figures: dict[str, Any]
    status: int
    err: str


def launch(script: str, folder: Path, *args: str, command: Sequence[str] = _COMMAND, **variables: str) -> "subprocess.Popen[str]":
    """Starts `markstep run script out args` in a folder of its own."""
    folder.mkdir(exist_ok=True)
    command = [*command, str(_SCRIPTS / script), "out", *args]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: "subprocess.Popen[str]", folder: Path) -> Run:
    err = process.communicate(timeout=240)[1]
    assert (folder / "out").exists(), err
    saved = torch.load(folder / "out", weights_only=False)
    return Run(saved["results"], saved["figures"], process.returncode, err)


def both(
    script: str, tmp_path: Path, *args: str, steps: int, share: float, status: int = 0, native: Sequence[str] = _COMMAND
) -> tuple[Run, Run]:
    """Runs a script natively and under Markstep, side by side, and compares what they compute.

    Args:
        script: its name.
        tmp_path: for the results.
        *args: its arguments after the path of its results.
        steps: optimizer steps that it makes after the first one of each thread, with which Markstep begins.
        share: at least this part of them has to be predicted and replayed.
        status: expected exit status.
        native: what runs it natively, with MARKSTEP=0.
    """
    folders = tmp_path / "native", tmp_path / "markstep"
    processes = launch(script, folders[0], *args, command=native, MARKSTEP="0"), launch(script, folders[1], *args, **_EXACT)
    want, got = (finish(p, folder) for p, folder in zip(processes, folders, strict=True))
    assert want.status == got.status == status, want.err + got.err
    assert_same(snapshot(want.results), snapshot(got.results), script)
    figures = got.figures
    assert want.figures["compiled"] == want.figures["eager"] == 0
    assert not figures["warnings"]
    assert figures["compiled"] + figures["eager"] == steps, figures["text"]
    assert figures["compiled"] >= share * steps, figures["text"]
    return want, got


@pytest.mark.parametrize("workers", ["0", "2"])
def test_plain_loop(workers: str, tmp_path: Path) -> None:
    both("plain.py", tmp_path, "--workers", workers, steps=8 * 9 - 1, share=0.85)


def test_gradient_accumulation_autocast_and_scaler(tmp_path: Path) -> None:
    native, _ = both("accumulate.py", tmp_path, steps=56, share=0.7)
    scales = native.results["scaler"]["scales"]
    assert min(scales) < 2.0**18 < max(scales)  # steps were left out because of infinities, and the scale grew


def test_two_optimizers(tmp_path: Path) -> None:
    both("gan.py", tmp_path, steps=79, share=0.85)


def test_threads(tmp_path: Path) -> None:
    """Results of a thread reach the main thread, and a thread may outlive the script's last line."""
    both("thread.py", tmp_path, steps=4 * 24, share=0.85)


def test_surroundings_of_a_script(tmp_path: Path) -> None:
    """`sys.argv`, `__file__`, `sys.path`, modules next to it, pickling, exit handlers and the exit status."""
    both("surroundings.py", tmp_path, steps=11, share=0.8, status=5, native=[sys.executable])


def test_an_exception_ends_the_script_as_in_python(tmp_path: Path) -> None:
    """Same status, same state left behind, and not one line of traceback more."""
    native, ours = both("raises.py", tmp_path, steps=14, share=0.7, status=1, native=[sys.executable])
    assert ours.err == native.err
    assert native.err.startswith("Traceback") and "mat1 and mat2 shapes" in native.err


def test_module(tmp_path: Path) -> None:
    """`markstep run -m package.module`."""
    package = tmp_path / "project"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "data.py").write_text("value = 3\n")
    (package / "train.py").write_text(
        "import sys\nfrom .data import value\nprint(__name__, __package__, value, sys.argv, sys.path[0])\nraise KeyError(1)\n"
    )
    outputs = [
        subprocess.run([*command, "-m", "project.train", "-x"], cwd=tmp_path, capture_output=True, text=True)
        for command in ([sys.executable], _COMMAND)
    ]
    assert outputs[0].returncode == outputs[1].returncode == 1
    assert outputs[0].stdout == outputs[1].stdout
    assert outputs[1].stderr.splitlines()[-3:] == outputs[0].stderr.splitlines()[-3:]
    assert "markstep" not in outputs[1].stderr


def test_syntax_error(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text("x = (\n")
    outputs = [
        subprocess.run([*command, str(script)], capture_output=True, text=True) for command in ([sys.executable], _COMMAND)
    ]
    assert outputs[0].returncode == outputs[1].returncode == 1
    assert outputs[0].stderr == outputs[1].stderr


def test_ctrl_c(tmp_path: Path) -> None:
    """The process ends by the signal, so that shells and launchers see what they expect, with the script's traceback."""
    script = tmp_path / "endless.py"
    script.write_text(
        "import torch\nw = torch.ones(3, requires_grad=True)\no = torch.optim.SGD([w], lr=1e-6)\ni = 0\n"
        "while True:\n    o.zero_grad()\n    (w * 2).sum().backward()\n    o.step()\n    i += 1\n"
        "    if i == 50: print('going', flush=True)\n"
    )
    process = subprocess.Popen(
        [*_COMMAND, str(script)],
        env={**os.environ, **_EXACT},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell ignores it for what it runs behind itself
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "going\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == -signal.SIGINT
    assert err.startswith("Traceback") and err.rstrip().endswith("KeyboardInterrupt")
    assert "launch.py" not in err and "cli.py" not in err


def test_hugging_face_trainer(tmp_path: Path) -> None:
    """36 steps and 20 more after resuming, each of two batches."""
    both("hf_trainer.py", tmp_path, steps=36 - 1 + 20, share=0.8)


def test_accelerate(tmp_path: Path) -> None:
    both("accelerated.py", tmp_path, steps=6 * 7 - 1, share=0.75)


def test_lightning(tmp_path: Path) -> None:
    both("lit.py", tmp_path, steps=4 * 16 + 4 * 8 - 1, share=0.75)


@pytest.mark.compile
def test_hugging_face_trainer_compiled(tmp_path: Path) -> None:
    """With TorchInductor the losses agree to 1e-3."""
    variables = {"MARKSTEP_BACKEND": "inductor", "MARKSTEP_RNG": "torch", "MARKSTEP_BACKGROUND": "0"}
    runs = [
        finish(launch("hf_trainer.py", tmp_path / name, "--quick", **chosen), tmp_path / name)
        for name, chosen in (("native", {"MARKSTEP": "0"}), ("markstep", variables))
    ]
    native, ours = (
        [log[k] for log in run.results["first"]["logs"] for k in ("loss", "grad_norm", "eval_loss") if k in log] for run in runs
    )
    assert ours == pytest.approx(native, rel=1e-3)
    assert len(native) == 2 * 7 + 3
    ran = sum(p["calls"] * p["runs"] for p in runs[1].figures["programs"])
    assert ran > 2000, runs[1].figures["text"]
