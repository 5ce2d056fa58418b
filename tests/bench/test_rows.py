"""Figures and their print."""

import math
from typing import Any

import pytest
from bench.rows import loss_difference, notes, spread, summary
from bench.table import table


def row(model: str, contender: str, speedup: float, **more: Any) -> dict[str, Any]:
    figures = {"step_ms": 10 / speedup, "ratio_to_eager": 1 / speedup, "ratio_low": 1.0, "ratio_high": 1.0}
    other = {"speedup": speedup, "loss_difference": 0.0}
    return {"model": model, "dtype": "fp32", "contender": contender, **figures, **other, **more}


def test_spread() -> None:
    assert spread([5.0]) == (5.0, 5.0, 5.0)
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)


def test_loss_difference_is_of_common_steps() -> None:
    difference, steps = loss_difference([2.0, 1.1, 0.5], [2.0, 1.0])
    assert difference == pytest.approx(0.1)
    assert steps == 2


def test_loss_difference_of_infinite_losses() -> None:
    assert loss_difference([1.0, math.nan], [1.0, 2.0]) == (None, 2)
    assert loss_difference([1.0, math.inf], [1.0, math.inf]) == (0.0, 2)


def test_summary_compares_with_the_better_peer() -> None:
    rows = [
        *(row("a", "eager", 1.0), row("a", "torch.compile", 2.0), row("a", "markstep", 4.0)),
        *(row("b", "eager", 1.0), row("b", "torch.compile", 0.5), row("b", "markstep", 1.0)),
        {"model": "c", "dtype": "fp32", "contender": "markstep", "error": "boom"},
    ]
    (line,) = summary(rows)
    assert "2.00x as fast as eager" in line
    assert "1.41x as fast as the better" in line
    assert "worst row 1.00x" in line


def test_notes_name_rows_that_did_not_compile() -> None:
    states = {"ready": [], "eager is faster": ["one warning"]}
    rows = [row("a", "markstep", 1.0, states=["recorded", state], warnings=w) for state, w in states.items()]
    assert notes(rows) == ["a fp32: Markstep ran eagerly: eager is faster; recorded; one warning"]
    assert notes([row("a", "markstep", 1.0, states=[], warnings=[]), row("a", "eager", 1.0)]) == [
        "a fp32: Markstep ran eagerly: nothing was recorded"
    ]


def test_table_shows_failures_and_missing_figures() -> None:
    failed = {"model": "b", "dtype": "bf16", "contender": "torch.compile", "error": "Traceback\nValueError: no"}
    lines = table([row("a", "eager", 1.0, optimizer="fused", warm_s=None, calls=7), failed]).splitlines()
    assert len(lines) == 3
    assert "eager (fused)" in lines[1]
    assert lines[2].endswith("failed: ValueError: no")
    assert lines[0].index("calls") + len("calls") == lines[1].index(" 7 ") + 2
