"""Attention without dropout, taken apart where that is faster.

On CPUs PyTorch has one operator for it that works through the keys in blocks and never holds all scores. For scores that
fit into a cache or nearly so, batched matrix products with generated kernels between them are faster. Scores are
computed in fp32, as the operator does; probabilities and their gradients are rounded to the dtype of the inputs before
they are multiplied, as the operator does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
_LARGEST = 64 << 20  # bytes of fp32 scores
_LONGEST = 1024  # keys


def decompositions() -> dict[Any, Callable[..., Any]]:
    """For `make_fx`."""
    return {
        _aten._scaled_dot_product_flash_attention_for_cpu.default: _forward,
        _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _backward,
    }


def _pays(query: Tensor, key: Tensor, dropout_p: float, attn_mask: Tensor | None) -> bool:
    batch, heads, length, _ = query.shape
    scores = 4 * batch * heads * length * key.shape[2]
    return attn_mask is None and dropout_p == 0.0 and 0 < scores <= _LARGEST and key.shape[2] <= _LONGEST


def _scores(query: Tensor, key: Tensor, is_causal: bool, scale: float | None) -> Tensor:
    """(batch, heads, queries, keys) in fp32."""
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query.float() @ key.float().mT) * factor
    if not is_causal:
        return scores
    rows = torch.arange(query.shape[2], device=query.device)[:, None]
    columns = torch.arange(key.shape[2], device=query.device)[None, :]
    return torch.where(columns <= rows, scores, -math.inf)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    if not _pays(query, key, dropout_p, attn_mask):
        return NotImplemented
    scores = _scores(query, key, is_causal, scale)
    largest = scores.amax(-1, keepdim=True)
    raised = (scores - largest).exp()
    total = raised.sum(-1, keepdim=True)
    output = (raised / total).to(value.dtype) @ value
    return output, (largest + total.log()).squeeze(-1)


def _backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    if not _pays(query, key, dropout_p, attn_mask):
        return NotImplemented
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    dtype = query.dtype
    probabilities = (_scores(query, key, is_causal, scale) - logsumexp.float()[..., None]).exp()
    share = (grad_out.float() * out.float()).sum(-1, keepdim=True)
    grad = probabilities * (grad_out.float() @ value.float().mT - share) * factor
    grad = grad.to(dtype)
    return grad @ key, grad.mT @ query, probabilities.to(dtype).mT @ grad_out
