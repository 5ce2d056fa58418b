"""A step of training as everybody writes it: forward, backward, clipping, AdamW with weight decay, linear schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from bench.data import Batch, batches
from bench.models import Case

_SCHEDULED_STEPS = 100_000
_LEARNING_RATE = 1e-4


def adamw(parameters: list[nn.Parameter], optimizer: str) -> torch.optim.AdamW:
    """AdamW in its "fused" or "foreach" implementation; no weight decay for biases and norms."""
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.01},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=_LEARNING_RATE, fused=optimizer == "fused", foreach=optimizer == "foreach")


class Training:
    """A model with its optimizer and batches; the same numbers for the same seed.

    Attributes:
        model: in training mode.
        forward: what the step calls; a contender may replace it by a compiled model.
        train_step: the step; a contender may replace it by a compiled step.
        losses: of every step so far; tensors until `settle`.
    """

    def __init__(self, case: Case, dtype: str, device: str, optimizer: str = "fused", seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = case.build().to(device).train()
        self.batches = batches(case, device, seed)
        self.forward: Callable[..., Any] = self.model
        self.train_step: Callable[[Batch], Tensor] = self.plain_step
        self.losses: list[Any] = []
        self._device, self._dtype = device, dtype
        self._parameters = list(self.model.parameters())
        self.use(optimizer)

    def use(self, optimizer: str) -> None:
        """Starts with a new AdamW, "fused" or "foreach"."""
        self._optimizer = adamw(self._parameters, optimizer)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, lambda step: max(0.0, 1 - step / _SCHEDULED_STEPS))

    def plain_step(self, batch: Batch) -> Tensor:
        """One step of plain PyTorch; returns the loss."""
        self._optimizer.zero_grad()
        with torch.autocast(self._device, torch.bfloat16, enabled=self._dtype == "bf16"):
            loss = self.forward(**batch)[0]
        loss.backward()
        clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self._schedule.step()
        return loss.detach()

    def advance(self) -> None:
        """Does the next step."""
        self.losses.append(self.train_step(self.batches[len(self.losses) % len(self.batches)]))

    def touch(self) -> None:
        """Reads the parameters: a system may have taken the memory of a process away that has waited for minutes."""
        for parameter in self._parameters:
            parameter.detach().sum()

    def settle(self) -> None:
        """Waits for the device and turns losses into numbers."""
        if self._device == "cuda":
            torch.cuda.synchronize()
        for i in range(len(self.losses) - 1, -1, -1):
            if isinstance(self.losses[i], float):
                break
            self.losses[i] = float(self.losses[i])
