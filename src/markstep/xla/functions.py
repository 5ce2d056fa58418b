"""Collectives with gradients, and layers made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from markstep.xla import collectives, processes

Groups = Sequence[Sequence[int]] | None


class AllReduce(torch.autograd.Function):
    """`all_reduce` as a function of autograd."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, reduce_type: str, scale: float, groups: Groups) -> Tensor:  # noqa: A002
        """Reduces over processes."""
        ctx.reduce_type, ctx.scale, ctx.groups = reduce_type, scale, groups
        result: Tensor = collectives.all_reduce(reduce_type, input, scale, groups)
        if reduce_type != collectives.REDUCE_SUM:
            ctx.save_for_backward(input, result)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Sums gradients over processes; for min and max those of the elements that were chosen.

        Raises:
            RuntimeError: the reduction has no gradient.
        """
        grad = collectives.all_reduce(collectives.REDUCE_SUM, grads[0], ctx.scale, ctx.groups)
        if ctx.reduce_type == collectives.REDUCE_SUM:
            return grad, None, None, None
        value, result = ctx.saved_tensors
        if ctx.reduce_type in (collectives.REDUCE_MIN, collectives.REDUCE_MAX):
            return torch.where(value * ctx.scale == result, grad, torch.zeros_like(grad)), None, None, None
        if ctx.reduce_type == collectives.REDUCE_MUL:
            return collectives.all_reduce("sum", grads[0] * result, 1.0, ctx.groups) / value, None, None, None
        raise RuntimeError(f"all_reduce of type {ctx.reduce_type!r} has no gradient")


def all_reduce(reduce_type: str, value: Tensor, scale: float = 1.0, groups: Groups = None) -> Tensor:
    """Reduces a tensor over processes; has a gradient. See `torch_xla.core.xla_model.all_reduce`."""
    result: Tensor = AllReduce.apply(value, reduce_type, scale, groups)
    return result


class AllGather(torch.autograd.Function):
    """`all_gather` as a function of autograd."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, dim: int) -> Tensor:  # noqa: A002
        """Joins the tensors of all processes."""
        ctx.dim, ctx.length = dim, input.shape[dim]
        result: Tensor = collectives.all_gather(input, dim)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Sums gradients over processes and takes the part of this one."""
        grad = collectives.all_reduce(collectives.REDUCE_SUM, grads[0])
        return grad.narrow(ctx.dim, processes.ordinal() * ctx.length, ctx.length), None


def all_gather(value: Tensor, dim: int = 0) -> Tensor:
    """Joins the tensors of all processes along a dimension; has a gradient."""
    result: Tensor = AllGather.apply(value, dim)
    return result


class AllReduceSumLayer(torch.autograd.Function):
    """Sum over processes whose gradient is the sum of gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Sums over processes."""
        result: Tensor = collectives.all_reduce(collectives.REDUCE_SUM, x)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Sums gradients over processes."""
        return collectives.all_reduce(collectives.REDUCE_SUM, grads[0])


def distributed_mm(w: Tensor, x: Tensor, split: int = 1) -> Tensor:
    """Product of a weight whose rows are distributed over processes and a tensor that each has its own of.

    Args:
        w: the rows of this process, (rows / processes, inner).
        x: (inner, columns).
        split: in how many pieces to compute, to save memory.

    Returns:
        (rows, columns): the whole weight times `x`.
    """
    if x.shape[1] % split:
        raise ValueError(f"split={split} does not divide the {x.shape[1]} columns of x")
    pieces = []
    for part in x.split(x.shape[1] // split, dim=1):
        everybody = all_gather(part, dim=1)
        product = w @ everybody
        rows = all_gather(product, dim=0)
        pieces.append(rows.narrow(1, processes.ordinal() * part.shape[1], part.shape[1]))
    return torch.cat(pieces, dim=1)


class SyncBatchNorm(nn.Module):
    """Batch normalisation with the statistics of the batches of all processes.

    Args:
        num_features: channels, dimension 1 of the input.
        eps: added to the variance.
        momentum: of the running statistics.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.running_mean: Tensor
        self.running_var: Tensor

    def forward(self, batch: Tensor) -> Tensor:
        """Normalises (batch, num_features, ...).

        Raises:
            ValueError: the number of features is another.
        """
        if batch.dim() < 2 or batch.shape[1] != self.num_features:
            raise ValueError(f"expected (batch, {self.num_features}, ...), not {tuple(batch.shape)}")
        mean, var = (self.running_mean, self.running_var) if not self.training else self._statistics(batch)
        shape = [1, -1] + [1] * (batch.dim() - 2)
        scale = self.weight * torch.rsqrt(var + self.eps)
        return (batch - mean.view(shape)) * scale.view(shape) + self.bias.view(shape)

    def _statistics(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        dims = [d for d in range(batch.dim()) if d != 1]
        count = batch.numel() // batch.shape[1]
        sums = torch.stack([batch.sum(dims), batch.square().sum(dims), torch.full_like(self.running_mean, float(count))])
        total: Tensor = AllReduceSumLayer.apply(sums)
        mean = total[0] / total[2]
        var = total[1] / total[2] - mean.square()
        with torch.no_grad():
            unbiased = var * total[2] / (total[2] - 1).clamp(min=1)
            self.running_mean.lerp_(mean.detach(), self.momentum)
            self.running_var.lerp_(unbiased.detach(), self.momentum)
        return mean, var

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


def repeat_with_fixed_output_size(input: Tensor, repeats: Tensor, total_repeat_length: int) -> Tensor:  # noqa: A002
    """`torch.repeat_interleave` whose result has a length that is known beforehand, so that the step goes on.

    Args:
        input: whose entries along dimension 0 are repeated.
        repeats: how often, for each entry.
        total_repeat_length: length of the result, which is cut, or filled up with the last entry.
    """
    positions = torch.arange(total_repeat_length, device=input.device)
    which = torch.searchsorted(repeats.cumsum(0), positions, right=True).clamp(max=input.shape[0] - 1)
    return input.index_select(0, which)


def nms(
    boxes: Tensor, scores: Tensor, score_threshold: Tensor | float, iou_threshold: Tensor | float, output_size: int
) -> tuple[Tensor, Tensor]:
    """Boxes of which none overlaps much with one of a higher score. Reads a value, which ends the step.

    Args:
        boxes: (N, 4): two opposite corners each.
        scores: (N,).
        score_threshold: boxes with less are left out.
        iou_threshold: two boxes whose intersection is more than this part of their union overlap much.
        output_size: at most N; length of the result.

    Returns:
        (numbers of the boxes, highest score first, then zeros; how many boxes these are, at most `output_size`).
    """
    order = scores.argsort(descending=True, stable=True)
    sorted_boxes = boxes[order]
    low = torch.minimum(sorted_boxes[:, :2], sorted_boxes[:, 2:])
    high = torch.maximum(sorted_boxes[:, :2], sorted_boxes[:, 2:])
    area = (high - low).prod(1)
    shared = (torch.minimum(high[:, None], high) - torch.maximum(low[:, None], low)).clamp(min=0).prod(2)
    overlap = (shared > iou_threshold * (area[:, None] + area - shared)).triu(1)
    valid = scores[order] >= score_threshold
    kept, before = valid, torch.zeros_like(valid)
    while not torch.equal(kept, before):  # box i is right after i rounds, mostly sooner
        kept, before = valid & ~(overlap & kept[:, None]).any(0), kept
    first = kept.logical_not().to(torch.int8).argsort(stable=True)[:output_size]
    count = kept.sum().clamp(max=output_size)
    return torch.where(torch.arange(len(first), device=boxes.device) < count, order[first], 0), count
