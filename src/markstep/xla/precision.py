"""Precision of matrix products in fp32, under torch_xla's names."""

from __future__ import annotations

import torch

_TO_TORCH = {"highest": "highest", "high": "high", "default": "medium"}
_FROM_TORCH = {value: key for key, value in _TO_TORCH.items()}


def set_mat_mul_precision(precision: str) -> None:
    """Sets `torch.set_float32_matmul_precision`: "highest" is fp32, "high" and "default" may use fewer bits.

    Raises:
        ValueError: another name.
    """
    if precision not in _TO_TORCH:
        raise ValueError(f"precision={precision!r} is not known: use 'default', 'high' or 'highest'")
    torch.set_float32_matmul_precision(_TO_TORCH[precision])


def get_mat_mul_precision() -> str:
    """The precision in use. PyTorch's is "highest" unless it was set; torch_xla's own was "default"."""
    return _FROM_TORCH[torch.get_float32_matmul_precision()]
