"""Saves a checkpoint in the middle of training, resumes from it, and shows that training goes on as if nothing had happened.

Run it with `markstep run examples/xla/checkpoint_resume.py`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch import nn

STEPS, BATCH, LENGTH = 16, 8, 24


class Memory(nn.Module):
    """Reads a sequence of numbers (batch, length, 1) and says what it saw first, with a recurrent cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(1, 24)
        self.out = nn.Linear(24, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(len(x), 24)
        for part in x.unbind(1):
            state = self.cell(part, state)
        return self.out(state)


class Training:
    """Everything that a checkpoint has to hold."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Memory().to(torch_xla.device())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + 0.1 * step))
        self.step = 0

    def advance(self) -> torch.Tensor:
        """One step on data that depend on its number alone; returns its loss."""
        x = torch.randn(BATCH, LENGTH, 1, generator=torch.Generator().manual_seed(self.step)).to(torch_xla.device())
        loss = nn.functional.mse_loss(self.model(x), x[:, 0])
        self.optimizer.zero_grad()
        loss.backward()
        xm.optimizer_step(self.optimizer)
        self.schedule.step()
        self.step += 1
        torch_xla.sync()
        return loss.detach()

    def save(self, path: Path) -> None:
        parts = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}
        xm.save({"step": self.step, **{name: part.state_dict() for name, part in parts.items()}}, str(path))

    def load(self, path: Path) -> None:
        saved = torch.load(path)
        self.step = saved["step"]
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.schedule.load_state_dict(saved["schedule"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        first = Training()
        for _ in range(STEPS):
            if first.step == STEPS // 2:
                first.save(path)
            uninterrupted = first.advance().item()
        second = Training()
        second.load(path)
        while second.step < STEPS:
            resumed = second.advance().item()
    states = ({name: t.cpu() for name, t in run.model.state_dict().items()} for run in (first, second))
    # A step may run compiled in one of them and call by call in the other, which rounds differently.
    torch.testing.assert_close(*states, rtol=1e-4, atol=1e-5)
    print(f"uninterrupted loss {uninterrupted:.6f}, resumed loss {resumed:.6f}")
    print(f"final loss: {resumed:.6f}")


if __name__ == "__main__":
    main()
