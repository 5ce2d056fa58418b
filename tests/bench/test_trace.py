"""The cost of following the calls."""

from bench.models import CASES
from bench.trace import trace_cost

from markstep.engine.ending import Interpreted


def test_trace_cost_of_a_small_model() -> None:
    run = Interpreted.run
    figures = trace_cost(CASES["mlp"], "fp32", steps=4)
    assert set(figures) == {"calls", "predict_ms", "predict_us_per_call", "trace_us_per_call"}
    assert figures["calls"] > 30
    assert 0 < figures["predict_us_per_call"] < 10_000
    assert figures["trace_us_per_call"] < figures["predict_us_per_call"]
    assert Interpreted.run is run
