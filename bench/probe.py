"""Which AdamW is faster here: fused or foreach. Both update the same parameters, in turns."""

from __future__ import annotations

import time
from statistics import median

import torch

from bench.models import Case
from bench.training import adamw


def optimizer_seconds(case: Case, device: str, rounds: int = 5) -> dict[str, float]:
    """Median seconds of an update of all parameters, by implementation."""
    parameters = list(case.build().to(device).parameters())
    for p in parameters:
        p.grad = torch.randn_like(p) * 1e-3
    both = {name: adamw(parameters, name) for name in ("fused", "foreach")}
    times: dict[str, list[float]] = {name: [] for name in both}
    for _ in range(1 + rounds):
        for name, optimizer in both.items():
            start = _clock(device)
            optimizer.step()
            times[name].append(_clock(device) - start)
    return {name: median(seconds[1:]) for name, seconds in times.items()}  # the first makes the state


def _clock(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
