"""Where the time of a step goes: seconds of its own of every operator and generated kernel, by torch's profiler."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bench.training import Training

_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("generated kernels", ("cpp_fused", "triton_")),
    ("optimizer", ("_fused_adam", "_foreach_", "_amp_foreach")),
    ("attention", ("_scaled_dot_product", "_flash_attention", "_efficient_attention")),
    ("convolutions", ("conv",)),
    ("recurrent layers", ("rnn", "lstm", "gru")),
    ("matrix products", ("mm", "linear_pointwise", "mkl_linear", "matmul")),
    ("copies and casts", ("copy", "contiguous", "clone", "_to_copy", "to")),
)
PYTHON = "Python, allocation, between"


def group(name: str) -> str:
    """The group of an operator or kernel."""
    short = name.rpartition("::")[2]
    for title, parts in _GROUPS:
        if any(short == part if part == "to" else part in short for part in parts):
            return title
    return "other operators"


def split(training: Training, steps: int) -> dict[str, Any]:
    """Milliseconds of a step: in all (`step_ms`, with the profiler on), by `groups`, and of the `dearest` names."""
    cuda = torch.cuda.is_initialized()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    walls = []
    with _named_kernels():
        training.advance()
        with profile(activities=activities) as profiler:
            for _ in range(steps):
                start = time.perf_counter()
                training.advance()
                if cuda:
                    torch.cuda.synchronize()
                walls.append(time.perf_counter() - start)
    own = {
        event.key: (event.self_device_time_total if cuda else event.self_cpu_time_total) / steps / 1e3
        for event in profiler.key_averages()
        if event.key not in ("cudaDeviceSynchronize",) and not event.key.startswith("ProfilerStep")
    }
    groups: dict[str, float] = {}
    for name, milliseconds in own.items():
        if not name.startswith("autograd::engine"):
            groups[group(name)] = groups.get(group(name), 0.0) + milliseconds
    step_ms = sum(walls) / steps * 1e3
    groups[PYTHON] = max(0.0, step_ms - sum(groups.values()))
    dearest = sorted(own.items(), key=lambda item: -item[1])[:12]
    return {"step_ms": step_ms, "groups": groups, "dearest": [[name, ms] for name, ms in dearest]}


@contextmanager
def _named_kernels() -> Iterator[None]:
    """Inside, the profiler sees the generated kernels of compiled programs under their names."""
    from markstep.codegen.executable import Compiled

    run, named = Compiled.run, []

    def seen(self: Any, session: Any) -> None:
        for _, graph in self.steps:
            scope = graph[1].__globals__ if graph is not None else None
            if scope is not None and all(scope is not other for other, _ in named):
                named.append((scope, _name_kernels(scope)))
        run(self, session)

    Compiled.run = seen  # type: ignore[method-assign]
    try:
        yield
    finally:
        Compiled.run = run  # type: ignore[method-assign]
        for scope, kernels in named:
            scope.update(kernels)


def _name_kernels(scope: dict[str, Any]) -> dict[str, Any]:
    kernels = {name: value for name, value in scope.items() if name.startswith("cpp_fused") and callable(value)}
    scope.update({name: _recorded(name, kernel) for name, kernel in kernels.items()})
    return kernels


def _recorded(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with record_function(name):
            return kernel(*args)

    return call
