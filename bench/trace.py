"""What following the operator calls costs: the Python of a predicted step against the Python of an eager step.

Method. Predicting does not look at data, so its cost depends on the calls and not on the sizes of tensors. It is
measured on a twin of the model that has the same layers and tensors so small that computing is cheap (`Case.tiny`), on
one CPU thread, in one process that alternates an eager and a predicted step:

* predicted = time of the whole step minus the time inside the executable that replays it: the user's Python, the
  matching of calls, the making of handles, the bookkeeping at the boundary.
* eager = time of the whole eager step of the twin.

Of both the lower quartile is taken, since whatever else the machine does only adds. The truth lies between

* `trace_us_per_call` = (predicted - eager) / calls. A lower bound of what Markstep adds: eager's operators compute here
  too, if little.
* `predict_us_per_call` = predicted / calls. An upper bound: it includes the Python that eager runs as well.

The interpreter is the backend: it needs no compiler, and what it replays is subtracted anyway.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import quantiles
from typing import Any

import torch

from bench.models import Case
from bench.training import Training

_FIRST = 5  # steps that record, make optimizer state and predict for the first time


class _ReplayClock:
    seconds = 0.0


@contextmanager
def _replay_clock() -> Iterator[_ReplayClock]:
    """Inside, the time that executables take is added up."""
    from markstep.engine.ending import Interpreted

    clock, run = _ReplayClock(), Interpreted.run

    def timed(self: Interpreted, session: Any) -> None:
        start = time.perf_counter()
        run(self, session)
        clock.seconds += time.perf_counter() - start

    Interpreted.run = timed  # type: ignore[method-assign]
    try:
        yield clock
    finally:
        Interpreted.run = run  # type: ignore[method-assign]


def trace_cost(case: Case, dtype: str, steps: int = 24) -> dict[str, float]:
    """`calls`, `predict_ms` of a step, `predict_us_per_call`, `trace_us_per_call`; empty if nothing was predicted."""
    import markstep

    torch.set_num_threads(1)
    training = Training(case.tiny(), dtype, "cpu", "fused")
    plain = training.plain_step
    followed = markstep.compile(plain, backend="interpreter", rng="torch")
    report = markstep.explain()
    eager: list[float] = []
    predicted: list[float] = []
    with _replay_clock() as clock:
        for i in range(_FIRST + 2 * steps):
            follows = i < _FIRST or i % 2 == 0
            training.train_step = followed if follows else plain
            before, clock.seconds = report.compiled_steps, 0.0
            start = time.perf_counter()
            training.advance()
            seconds = time.perf_counter() - start
            if not follows:
                eager.append(seconds)
            elif i >= _FIRST and report.compiled_steps > before:
                predicted.append(seconds - clock.seconds)
    if len(predicted) < steps // 2:
        return {}
    calls = max(report.programs, key=lambda p: p.runs).calls
    python, computing = (quantiles(times, n=4)[0] for times in (predicted, eager))
    return {
        "calls": calls,
        "predict_ms": python * 1e3,
        "predict_us_per_call": python / calls * 1e6,
        "trace_us_per_call": (python - computing) / calls * 1e6,
    }
