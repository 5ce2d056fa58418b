"""One contender of `bench.xla_device`: trains on command. The script part is written for torch_xla, whichever one is there.

Usage: xla_worker.py CONTENDER MODEL DTYPE; reads numbers of steps, answers with milliseconds a step.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.data import batches
from bench.models import CASES

_WARM_UP, _WARM_UP_S = 16, 5.0  # steps, and seconds after them; by then Markstep has chosen between eager and compiled


def main(contender: str, name: str, dtype: str) -> None:
    """Trains `name` on the CPU ("eager", "markstep") or on the xla device ("torch_xla", "xla")."""
    end_step: Callable[[], Any] = lambda: None  # noqa: E731
    wrap: Callable[[Any], Any] = lambda step: step  # noqa: E731
    device: Any = "cpu"
    if contender in ("torch_xla", "xla"):
        import torch_xla
        import torch_xla.core.xla_model as xm

        ours = hasattr(sys.modules.get("markstep"), "explain")
        assert ours == (contender == "xla"), "the wrong torch_xla was imported"
        device, end_step = torch_xla.device(), torch_xla.sync
        wait = xm.wait_device_ops
    else:
        wait = lambda: None  # noqa: E731
    if contender == "markstep":
        import markstep

        wrap = markstep.compile
    torch.manual_seed(0)
    model: Any = CASES[name].build().to(device).train()
    data = batches(CASES[name], "cpu", 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: max(0.0, 1 - n / 100_000))

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=dtype == "bf16"):
            loss: Tensor = model(**batch)[0]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss.detach()

    step = wrap(train_step)
    losses: list[Any] = []

    def train(steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            batch = {k: v.to(device) for k, v in data[len(losses) % len(data)].items()}
            losses.append(step(batch))
            end_step()
        wait()
        return (time.perf_counter() - start) / steps * 1e3

    start = time.perf_counter()
    train(_WARM_UP)
    warm = time.perf_counter()
    while time.perf_counter() - warm < _WARM_UP_S:
        train(1)
    print(json.dumps({"warm_up_s": warm - start, "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"ms": train(int(line))}), flush=True)
    with open("/proc/self/status") as status:
        peak = next(int(text.split()[1]) for text in status if text.startswith("VmHWM"))
    print(json.dumps({"losses": [float(x) for x in losses[:5]], "peak_mib": peak / 1024}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
