"""One process of a contender of `bench.data_parallel`: trains on command.

Usage: data_parallel_worker.py CONTENDER MODEL DTYPE RANK WORLD PORT; reads numbers of steps, answers with milliseconds a step.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bench.data import batches
from bench.models import CASES

_WARM_UP, _SETTLED_S = 16, 6.0  # steps, and seconds after them; by then Markstep has chosen between eager and compiled


def main(contender: str, name: str, dtype: str, rank: int, world: int, port: int) -> None:
    """Trains `name` in this process as rank `rank` of `world`."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    torch.manual_seed(0)
    model: Any = CASES[name].build().train()
    wrap: Callable[[Any], Any] = lambda step: step  # noqa: E731
    if contender == "markstep":
        import markstep
        from markstep.distributed import DataParallel

        wrapped: Any = DataParallel(model)
        wrap = markstep.compile
    else:
        wrapped = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        if contender == "ddp+torch.compile":
            wrapped = torch.compile(wrapped)
    data = batches(CASES[name], "cpu", rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            loss: Tensor = wrapped(**batch)[0]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    step = wrap(train_step)
    losses: list[Any] = []

    def train(steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            losses.append(step(data[len(losses) % len(data)]))
        return (time.perf_counter() - start) / steps * 1e3

    start = time.perf_counter()
    train(_WARM_UP)
    spent = torch.tensor(time.perf_counter() - start)
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    train(_settling_steps(train))
    print(json.dumps({"warm_up_s": float(spent)}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"ms": train(int(line))}), flush=True)
    state = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    compiled = 0
    if contender == "markstep":
        compiled = markstep.explain().compiled_steps
    print(
        json.dumps(
            {"loss": float(losses[4]), "hash": hashlib.sha256(state).hexdigest(), "steps": len(losses), "compiled": compiled}
        ),
        flush=True,
    )
    dist.destroy_process_group()


def _settling_steps(train: Callable[[int], float]) -> int:
    """As many steps in all processes."""
    ms = torch.tensor(train(2))
    dist.all_reduce(ms, dist.ReduceOp.MAX)
    return max(3, int(_SETTLED_S * 1e3 / float(ms)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
