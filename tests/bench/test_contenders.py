"""When a contender has reached its full speed, told from what it says about itself."""

from types import SimpleNamespace
from typing import Any

import pytest
from bench.contenders import Eager, Markstep
from bench.models import CASES
from bench.training import Training

import markstep
from markstep.engine.report import ProgramReport, Report


@pytest.fixture
def training() -> Training:
    return Training(CASES["mlp"].tiny(), "fp32", "cpu", "fused")


def program(state: str, **more: Any) -> ProgramReport:
    return ProgramReport(f"program {state}", 10, 0, 0, "train.py:1", state, **more)


def test_eager_is_ready_after_three_steps(training: Training) -> None:
    eager = Eager(training)
    assert [eager.phase() for _ in range(3)] == ["checking", "checking", "ready"]


@pytest.mark.parametrize(
    ("programs", "phase"),
    [
        ([], "compiling"),
        ([program("recorded")], "compiling"),
        ([program("recorded"), program("compiling")], "compiling"),
        ([program("recorded"), program("ready")], "trial"),
        ([program("ready", eager_ms=2.0, compiled_ms=1.0)], "ready"),
        ([program("eager is faster", eager_ms=1.0, compiled_ms=2.0)], "ready"),
        ([program("ready", eager_ms=2.0), program("compiling")], "compiling"),
    ],
)
def test_markstep_tells_its_phase(
    programs: list[ProgramReport], phase: str, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markstep, "explain", lambda: Report(programs=programs))
    assert Markstep(training).phase() == phase


def test_markstep_gives_up_when_nothing_happens(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Report(programs=[program("recorded"), program("no compiler")])
    monkeypatch.setattr(markstep, "explain", lambda: failed)
    contender = Markstep(training)
    phases = [contender.phase() for _ in range(14)]
    assert phases[0] == "trial"
    assert phases[-1] == "ready"


@pytest.mark.parametrize(("switch", "last"), [("0", "ready"), ("1", "compiling")])
def test_markstep_without_programs(switch: str, last: str, training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARKSTEP", switch)
    monkeypatch.setattr(markstep, "explain", Report)  # as long as the C++ part is being built
    contender = Markstep(training)
    phases = [contender.phase() for _ in range(20)]
    assert phases[0] == "compiling"
    assert phases[-1] == last


def test_markstep_trains(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARKSTEP_BACKEND", "interpreter")
    contender = Markstep(training)
    phases = []
    for _ in range(8):
        training.advance()
        phases.append(contender.phase())
    assert phases[0] == "compiling"
    assert phases[-1] == "ready"
    figures = SimpleNamespace(**contender.figures())
    assert figures.calls > 30
    assert figures.warnings == []
