"""A small training with everything that a checkpoint has to hold: dropout, shuffling, AdamW, a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from markstep.checkpoint import ResumableLoader


class Training:
    """Its state depends on `seed` in every way that loading has to undo.

    Args:
        seed: of weights, data order and dropout.
        ranks: number of processes that share the data; this is `rank`.
        rank: of this process.
        wrap: what to do with the model before the optimizer is made.
        workers: of the DataLoader.
    """

    def __init__(
        self, seed: int, *, ranks: int = 1, rank: int = 0, wrap: Callable[[nn.Module], nn.Module] = lambda m: m, workers: int = 0
    ) -> None:
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(40, 6), torch.randn(40, 1))
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.model = wrap(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=100)
        torch.manual_seed(seed + 100 * rank)
        sampler = DistributedSampler(data, ranks, rank, seed=3) if ranks > 1 else None
        loader = DataLoader(data, batch_size=4, shuffle=sampler is None, sampler=sampler, num_workers=workers)
        self.loader = ResumableLoader(loader)
        self.step = 0

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "loader": self.loader}

    def losses(self, until: int) -> Iterator[float]:
        """Trains until a step; the loss of each."""
        while True:
            if hasattr(self.loader.sampler, "set_epoch"):
                self.loader.sampler.set_epoch(self.loader.epoch)
            for x, y in self.loader:
                loss = nn.functional.mse_loss(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
                self.step += 1
                yield float(loss.detach())
                if self.step == until:
                    return
