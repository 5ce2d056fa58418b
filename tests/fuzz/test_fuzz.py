"""Generated training steps under Markstep against eager PyTorch, bit for bit.

FUZZ_EXAMPLES sets how many (fresh ones each time then); FUZZ_BACKEND=inductor compares within a tolerance instead.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.machine import STEPS, WEIGHTED, Instruction, Machine
from tests.same import difference

import markstep
from markstep.engine import report

EXAMPLES = os.environ.get("FUZZ_EXAMPLES")
BACKEND = os.environ.get("FUZZ_BACKEND", "interpreter")
TOLERANCE = None if BACKEND == "interpreter" else 1e-3

numbers = st.integers(0, 255)
instructions = st.lists(st.tuples(st.sampled_from(WEIGHTED), numbers, numbers, numbers), min_size=2, max_size=24)


class Run:
    """One run of a generated training: what could be observed after every step."""

    def __init__(self, program: list[Instruction], alive: int, sharing: int, alternate: bool) -> None:
        self.machine = Machine(program, alive)
        self.sharing, self.alternate = sharing, alternate
        self.kept: list[Any] = []

    def step(self, k: int, step: Any) -> Any:
        """Runs step `k`; returns what can be observed after it."""
        m = self.machine
        m.step_number, m.log = k, []
        batch = m.batch(k, self.sharing + (k if self.alternate else 0))
        before = [t.detach() for t in (*m.state, *batch)]
        torch.manual_seed(k)
        try:
            result = step(batch)
        except Exception as error:  # noqa: BLE001 - the same one is expected of Markstep
            kind = type(error) if TOLERANCE is None else Exception  # compiled code names other ones
            if m.poisoned:  # what Python did after the line that failed is not undone: only memory is as eager leaves it
                return kind, before
            return kind, m.log, m.state, [p.grad for p in m.state if p.is_leaf], batch
        self.kept.append(result)
        return m.log, self.kept[-2:], m.state, [p.grad for p in m.state if p.is_leaf], batch, torch.get_rng_state()


def compare(program: list[Instruction], alive: int, sharing: int, alternate: bool) -> report.Report:
    """Runs one program both ways; returns Markstep's report."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want, got = Run(program, alive, sharing, alternate), Run(program, alive, sharing, alternate)
        step = markstep.compile(got.machine.step, backend=BACKEND, rng="torch", background=False)
        figures = report.reset()
        for k in range(STEPS):
            expected, found = want.step(k, want.machine.step), got.step(k, step)
            text = difference(expected, found, TOLERANCE)
            assert text is None, f"step {k}: {text}\n{figures}"
            if want.machine.poisoned:
                break
    return figures


@pytest.mark.fuzz
@pytest.mark.timeout(0 if EXAMPLES else 300)
def test_generated_steps_equal_eager() -> None:
    totals = {"examples": 0, "replayed": 0, "steps": 0}

    @settings(
        max_examples=int(EXAMPLES or 500),
        derandomize=EXAMPLES is None,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(instructions, st.integers(0, 65535), st.integers(0, 5), st.booleans())
    def run(program: list[Instruction], alive: int, sharing: int, alternate: bool) -> None:
        figures = compare(program, alive, sharing, alternate)
        totals["examples"] += 1
        totals["replayed"] += figures.compiled_steps > 0
        totals["steps"] += figures.compiled_steps

    run()
    print(f"{totals['examples']} programs, {totals['replayed']} replayed, {totals['steps']} steps replayed")
    if BACKEND == "interpreter":
        assert totals["replayed"] > 0.5 * totals["examples"]
