"""Where a step ends: sync, step and compile."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any

from markstep.engine import report
from markstep.xla import closures, debug_report, device, eager, metrics, metrics_file, notices, scopes

_seen = {"report": 0, "programs": 0, "runs": 0, "operators": 0}
_SYNC = "user torch_xla.sync"
_compiled: set[int] = set()  # ids of program reports whose compilation is counted


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Ends the step: everything pending runs, then step closures.

    Args:
        wait: has no effect, values are there when this returns.
        reset_scope: refuse to end the step inside a `Trace` block.

    Raises:
        RuntimeError: this is inside a `Trace` block.
    """
    if reset_scope:
        scopes.require_none()
    end_step(_SYNC)


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """Deprecated since torch_xla 2.8: `torch_xla.sync`."""
    notices.warn_deprecated("xm.mark_step", "2.8", "torch_xla.sync")
    sync(wait, reset_scope)


def end_step(cause: str) -> None:
    """Ends the step for a reason that debug reports show."""
    with metrics.Execution(device.runs_at_once(), counts=cause != _SYNC or not eager.is_eager_mode()):
        device.barrier(cause)
    metrics.count("MarkStep")
    programs = _count_programs()
    debug_report.execution(cause, programs)
    metrics_file.save_metrics()
    closures.run_step_closures()


def _count_programs() -> list[report.ProgramReport]:
    """Counts what the engine did since the last step; returns the programs it met for the first time."""
    current = report.current()
    if id(current) != _seen["report"]:
        _seen.update(report=id(current), programs=0, runs=0)
        _compiled.clear()
    new = current.programs[_seen["programs"] :]
    if new:
        metrics.count("UncachedCompile", len(new))
    _seen["programs"] = len(current.programs)
    for program in current.programs:
        if program.compile_s is not None and id(program) not in _compiled:
            _compiled.add(id(program))
            metrics.observe("CompileTime", program.compile_s * 1e9)
            metrics.count("CreateCompileHandles")
    runs = sum(p.runs + p.interpreted for p in current.programs)
    if runs > _seen["runs"]:
        metrics.count("CachedCompile", runs - _seen["runs"])
    _seen["runs"] = runs
    operators = sum(device.op_counts().values())
    if operators > _seen["operators"]:
        metrics.observe("TensorsGraphSize", operators - _seen["operators"], kind="value")
    _seen["operators"] = operators
    return new


class CompiledRegion(ContextDecorator):
    """A block that is a step of its own: what is pending runs before it, and all of it has run behind it.

    Args:
        full_graph: raise RuntimeError at the end if the block read a value, which cuts the step in two.
    """

    def __init__(self, full_graph: bool = False) -> None:
        self.full_graph = full_graph

    def _recreate_cm(self) -> CompiledRegion:
        return CompiledRegion(self.full_graph)

    def __enter__(self) -> None:
        end_step("torch_xla.compile clear the pending graph prior calling the target function")
        self.reads = _value_reads()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        reads = _value_reads()
        end_step("torch_xla.compile")
        if kind is None and self.full_graph and reads > self.reads:
            raise RuntimeError(
                "Unexpected execution happens inside the compiled function, exiting: full_graph=True forbids reading values "
                "(item, print, a condition on a tensor) inside; markstep.explain() shows where"
            )


def _value_reads() -> int:
    counts = device.op_counts()
    read = sum(calls for name, calls in counts.items() if name.partition(".")[0] in metrics.HOST_READS)
    return read + sum(n for (cause, _), n in report.current().boundaries.items() if cause != "optimizer step")


def step() -> CompiledRegion:
    """A `with` block that is one step; ends what is pending before it, too."""
    return CompiledRegion()


def compile(  # noqa: A001
    f: Callable[..., Any] | None = None,
    full_graph: bool | None = False,
    name: str | None = None,
    max_different_graphs: int | None = None,
) -> Any:
    """Makes a function, or with f=None a `with` block, a step of its own.

    Args:
        f: the function, usually one training step.
        full_graph: raise RuntimeError when a value is read inside.
        name: shown by nothing; the engine names places by file and line.
        max_different_graphs: accepted; `markstep.explain()` lists the programs and why each is new.
    """
    region = CompiledRegion(bool(full_graph))
    if f is None:
        return region

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with CompiledRegion(bool(full_graph)):
            return f(*args, **kwargs)

    return wrapper
