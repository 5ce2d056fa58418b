"""The scripts in `examples/xla/` train under `markstep run`, and give the same losses as with MARKSTEP=0."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "xla"
_COMMAND = """
import json, sys, markstep
from markstep.cli import main
status = main()
found = markstep.explain()
print("figures:", json.dumps([found.compiled_steps, sum(p.runs for p in found.programs)]))
sys.exit(status)
"""
_SCRIPTS = sorted(p.name for p in _EXAMPLES.glob("*.py"))


class Run(NamedTuple):
    losses: list[float]  # all that were printed, the final one at the end
    replayed_steps: int
    compiled_runs: int


def run(script: str, **variables: str) -> Run:
    """`markstep run script` in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if k != "USE_TORCH_XLA"}
    done = subprocess.run(
        [sys.executable, "-c", _COMMAND, "run", str(_EXAMPLES / script)],
        env={**environment, "OMP_NUM_THREADS": "1", "PJRT_DEVICE": "CPU", **variables},
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (final,) = re.findall(r"^final loss: (\S+)$", done.stdout, re.MULTILINE)
    (figures,) = re.findall(r"^figures: (.*)$", done.stdout, re.MULTILINE)
    return Run([*map(float, re.findall(r"loss (\d+\.\d+)", done.stdout)), float(final)], *json.loads(figures))


def test_there_are_five() -> None:
    assert len(_SCRIPTS) == 5


@pytest.mark.slow
@pytest.mark.parametrize("script", _SCRIPTS)
def test_replayed(script: str) -> None:
    """Recorded operators, replayed one by one: the same figures as in eager execution."""
    eager = run(script, MARKSTEP="0")
    replayed = run(script, MARKSTEP_BACKEND="interpreter", MARKSTEP_RNG="torch")
    assert replayed.losses == eager.losses
    assert eager.replayed_steps == 0 < replayed.replayed_steps
    if script == "checkpoint_resume.py":
        assert len(set(replayed.losses)) == 1  # without the interruption, with it, and the final loss


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.parametrize("script", ["native_amp.py", "trainer_classification.py"])
def test_compiled(script: str) -> None:
    """Compiled: sums are in another order, and autocast rounds in fewer places."""
    eager = run(script, MARKSTEP="0")
    compiled = run(script, MARKSTEP_BACKGROUND="0")
    assert compiled.losses == pytest.approx(eager.losses, rel=5e-2 if script == "native_amp.py" else 1e-3)
    assert compiled.compiled_runs > 0
