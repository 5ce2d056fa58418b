"""Gradient accumulation, with GradScaler and fp16 or bf16 autocast."""

import sys

import outcome
import torch
from torch import nn
from torch.nn import functional as F


def train(kind: str) -> dict[str, object]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=5, enabled=kind == "scaler")
    dtype = torch.float16 if kind == "scaler" else torch.bfloat16
    losses, scales = [], []
    for i in range(80):
        x, y = torch.randn(6, 8), torch.randint(3, (6,))
        with torch.autocast("cpu", dtype=dtype, enabled=kind != "fp32"):
            loss = F.cross_entropy(model(x), y) / 4
        scaler.scale(loss).backward()
        losses.append(loss.item() if kind == "fp32" else loss.detach())
        if i % 4 == 3:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=i % 8 == 3)
            scales.append(scaler.get_scale())
    return {"losses": losses, "scales": scales, "model": model.state_dict(), "optimizer": optimizer.state_dict()}


outcome.save(sys.argv[1], fp32=train("fp32"), bf16=train("bf16"), scaler=train("scaler"))
