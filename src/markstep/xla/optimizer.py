"""Gradients of all processes, and the optimizer's step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from markstep.xla import collectives, processes, steps


def fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The gradients of all parameters that have one, in the optimizer's order."""
    return [p.grad.data for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def reduce_gradients(
    optimizer: torch.optim.Optimizer, groups: Sequence[Sequence[int]] | None = None, pin_layout: bool = True
) -> None:
    """Averages the gradients over all processes, in place; does nothing with one process.

    Args:
        optimizer: whose parameters have the gradients.
        groups: lists of ordinals that average among each other; the divisor is the number of all processes, as in torch_xla.
        pin_layout: has no effect.
    """
    world = processes.world_size()
    if world == 1:
        return
    gradients = fetch_gradients(optimizer)
    bucket_mb = int(os.environ.get("ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB", 0))
    if bucket_mb > 0:
        all_reduce_bucketized_gradients(gradients, 1.0 / world, groups, pin_layout, bucket_mb)
    else:
        collectives.all_reduce(collectives.REDUCE_SUM, gradients, scale=1.0 / world, groups=groups)


def all_reduce_bucketized_gradients(
    gradients: list[torch.Tensor],
    scale: float,
    groups: Sequence[Sequence[int]] | None,
    pin_layout: bool,
    bucket_cap_mb: int = 0,
) -> None:
    """Sums gradients over processes in place, last ones first, `bucket_cap_mb` megabytes at a time (0: all at once)."""
    for bucket in collectives.buckets(gradients[::-1], bucket_cap_mb):
        collectives.all_reduce(collectives.REDUCE_SUM, bucket, scale=scale, groups=groups)


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: dict[str, Any] | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    pin_layout: bool = True,
) -> Any:
    """Averages gradients over all processes and makes the optimizer's step.

    Args:
        optimizer: the optimizer.
        barrier: end the step of the device, too. Loaders of `parallel_loader` do that, so False is right with them.
        optimizer_args: keyword arguments of `optimizer.step`.
        groups: see `reduce_gradients`.
        pin_layout: has no effect.

    Returns:
        What `optimizer.step` returns: the loss of its closure, or None.
    """
    reduce_gradients(optimizer, groups=groups, pin_layout=pin_layout)
    loss = optimizer.step(**(optimizer_args or {}))
    if barrier:
        steps.end_step("user torch_xla.sync")
    return loss
