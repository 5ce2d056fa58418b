"""Every operator of PyTorch's own database: forward and backward under Markstep equal eager bit for bit.

OPINFO_SAMPLES sets how many sample inputs of each operator are tried; `all` takes every one.
"""

from __future__ import annotations

import pytest
import torch
from tests.opinfo.sweep import full_name, operators, sweep

pytestmark = pytest.mark.opinfo
OPERATORS = {full_name(op): (op, dtype) for op, dtype in operators()}
not_predicted: dict[str, bool] = {}


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_equals_eager(name: str) -> None:
    torch.set_num_threads(1)
    outcome = sweep(*OPERATORS[name])
    not_predicted[name] = outcome.predicted < outcome.samples - outcome.raised
    assert not outcome.failures, "\n".join(outcome.failures)


def test_nearly_all_operators_are_predicted() -> None:
    if len(not_predicted) < len(OPERATORS):
        pytest.skip("only some operators ran")
    assert sum(not_predicted.values()) < 0.08 * len(OPERATORS), sorted(n for n, missed in not_predicted.items() if missed)
