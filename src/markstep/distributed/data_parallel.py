"""Gradients averaged over processes, inside the step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from markstep.distributed.reducer import Reducer


class DataParallel(nn.Module):
    """Trains one model in several processes, each on its own part of every batch.

    After backward all processes have the average of their gradients. Buckets of gradients are reduced while backward goes on,
    in the same order everywhere. Parameters and buffers start as those of rank 0. A parameter without a gradient counts as zero
    where another process has one; where none has, its gradient stays None.

    Args:
        module: the model, of the same structure in all processes.
        process_group: the processes; by default all. `torch.distributed` has to be initialised.
        bucket_mb: size of a bucket in MB; the first one is smaller, so that the first reduction starts early.
        broadcast_buffers: before every forward in training, buffers (running statistics, say) become those of rank 0.

    Raises:
        RuntimeError: torch.distributed is not initialised, or the models differ; the message names the ranks.
        ValueError: no parameter needs a gradient.
    """

    def __init__(
        self, module: nn.Module, process_group: Any = None, bucket_mb: float = 25.0, *, broadcast_buffers: bool = True
    ) -> None:
        super().__init__()
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(
                "DataParallel needs torch.distributed: start the script with `markstep run --nproc N` (or torchrun) and call "
                "torch.distributed.init_process_group() first"
            )
        self.module = module
        self._reducer = Reducer(module, process_group or dist.group.WORLD, bucket_mb, broadcast_buffers=broadcast_buffers)
        self._synchronises = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module."""
        if torch.is_grad_enabled():
            self._reducer.before_forward(synchronises=self._synchronises, training=self.training)
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of forwards inside add up in each process alone; the next one outside reduces the sums."""
        before, self._synchronises = self._synchronises, False
        try:
            yield
        finally:
            self._synchronises = before
