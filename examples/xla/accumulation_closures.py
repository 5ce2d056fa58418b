"""Gradient accumulation, a learning rate schedule, and step closures that print without interrupting the device.

Run it with `markstep run examples/xla/accumulation_closures.py`.
"""

from __future__ import annotations

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch import nn

WIDTH, MICRO_BATCH, ACCUMULATED, UPDATES = 32, 16, 4, 24


def micro_batch(source: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (batch, width) and what is to be learnt from them: the length of each."""
    x = torch.randn(MICRO_BATCH, WIDTH, generator=source)
    return x, x.norm(dim=1, keepdim=True)


def log(update: int, rate: float, total: torch.Tensor, seen: list[float]) -> None:
    """Runs after the step was launched, when its values are wanted anyway."""
    seen.append(total.item())
    print(f"update {update}: loss {seen[-1]:.5f}, learning rate {rate:.5f}")


def main() -> None:
    torch.manual_seed(0)
    device = torch_xla.device()
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, UPDATES)
    source = torch.Generator().manual_seed(1)
    seen: list[float] = []
    for update in range(UPDATES):
        total = torch.zeros((), device=device)
        for _ in range(ACCUMULATED):
            x, y = (part.to(device) for part in micro_batch(source))
            loss = nn.functional.mse_loss(model(x), y) / ACCUMULATED
            loss.backward()
            total += loss.detach()
        xm.optimizer_step(optimizer)
        rate = schedule.get_last_lr()[0]
        schedule.step()
        optimizer.zero_grad()
        if update % 6 == 5:
            xm.add_step_closure(log, args=(update, rate, total, seen))
        torch_xla.sync()
    print(f"final loss: {seen[-1]:.6f}")


if __name__ == "__main__":
    main()
