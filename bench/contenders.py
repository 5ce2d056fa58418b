"""Who trains: eager PyTorch, torch.compile, Markstep. Each says how far it has got towards its full speed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from bench.training import Training
from markstep.engine.options import PASSES

# What the step that has just run was. "compiling": full speed is not there yet. "trial": it is there in some steps.
# "checking": full speed, as far as one can tell. "ready": full speed from here on.
Phase = str


class Contender(Protocol):
    """Takes over the step of a `Training`.

    Attributes:
        in_background: it compiles while training goes on.
    """

    in_background: bool

    def phase(self) -> Phase:
        """Called after each step of the warm-up."""

    def figures(self) -> dict[str, Any]:
        """`compile_s`: seconds of compilation so far, and whatever else it knows about itself."""


class Eager:
    """PyTorch as it is."""

    in_background = False

    def __init__(self, training: Training) -> None:
        self._left = 3

    def phase(self) -> Phase:
        """Ready after three steps: memory is allocated and the optimizer has its state."""
        self._left -= 1
        return "checking" if self._left else "ready"

    def figures(self) -> dict[str, Any]:
        return {"compile_s": 0.0}


class TorchCompile:
    """The model through `torch.compile`; fused AdamW runs as it is."""

    in_background = False

    def __init__(self, training: Training) -> None:
        training.forward = torch.compile(training.model)
        self._spent, self._quiet = 0.0, 0

    def phase(self) -> Phase:
        """Ready when two steps in a row have compiled nothing."""
        before, self._spent = self._spent, self._compile_s()
        self._quiet = self._quiet + 1 if self._spent == before else 0
        return ("compiling", "checking", "ready")[min(self._quiet, 2)]

    def _compile_s(self) -> float:
        from torch._dynamo.utils import calculate_time_spent

        return calculate_time_spent().get("total_wall_time", 0.0)

    def figures(self) -> dict[str, Any]:
        return {"compile_s": self._compile_s()}


class Markstep:
    """The whole step through `markstep.compile`, with the options of the environment (MARKSTEP_BACKEND and so on)."""

    in_background = True
    _PATIENCE = 12  # longer than a trial of compiled against eager steps takes

    def __init__(self, training: Training, **options: Any) -> None:
        import markstep
        from markstep.engine.options import enabled, resolve

        self._backend = resolve({}).backend
        self._never_compiles = self._backend == "eager" or not enabled()
        self._explain = markstep.explain
        training.train_step = markstep.compile(training.plain_step, **options)
        self._last: Any = None
        self._quiet = 0
        self._counted: dict[str, int] = {}

    def phase(self) -> Phase:
        """Ready when Markstep has measured compiled against eager steps and settled, or has given up."""
        report = self._explain()
        states = [(p.state, p.eager_ms) for p in report.programs]
        self._quiet = self._quiet + 1 if states == self._last else 0
        self._last = states
        names = [state for state, _ in states]
        if "compiling" in names or not set(names) - {"recorded"}:
            return "ready" if self._quiet >= self._PATIENCE and self._hopeless(states) else "compiling"
        settled = any(eager_ms is not None for _, eager_ms in states)
        if settled or self._backend == "interpreter" or self._quiet >= self._PATIENCE:
            self._counted = self._count()
            return "ready"
        return "trial"

    def _hopeless(self, states: Any) -> bool:
        """Will no program ever run compiled? Without a warning the C++ part may still be under way."""
        return self._never_compiles or (not states and bool(self._explain().warnings))

    def _count(self) -> dict[str, int]:
        return {p.name: p.runs + p.interpreted for p in self._explain().programs}

    def figures(self) -> dict[str, Any]:
        """Also `calls` of operators in a step, `states` of the programs, how many were `cached`, and `warnings`."""
        report = self._explain()
        now = self._count()
        ran = {p.name: now[p.name] - self._counted.get(p.name, 0) for p in report.programs}
        steps = max(ran.values(), default=0)
        largest = max((p.calls for p in report.programs), default=0)
        calls = round(sum(p.calls * ran[p.name] for p in report.programs) / steps) if steps else largest
        return {
            "compile_s": sum(p.compile_s or 0.0 for p in report.programs),
            "calls": calls,
            "cached": sum(p.cached for p in report.programs),
            "states": [p.state for p in report.programs],
            "warnings": list(report.warnings),
        }


CONTENDERS: dict[str, Callable[[Training], Contender]] = {
    "eager": Eager,
    "torch.compile": TorchCompile,
    "markstep": Markstep,
    **{f"markstep without {name}": partial(Markstep, passes=f"all,-{name}") for name in PASSES},
}
"""By name: those of every suite, and Markstep without one of its passes, to see what that is worth."""
PEERS = ("eager", "torch.compile")
