"""Says where two nested results differ, bit for bit and in what can be observed of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten


def difference(want: Any, got: Any, tolerance: float | None = None) -> str | None:
    """The first difference: structure, metadata, bits (NaN payloads included), who shares memory with whom.

    With a tolerance, values are compared within it (30 times as much for 16-bit types) instead of bit by bit.
    """
    a_leaves, a_tree = tree_flatten(want)
    b_leaves, b_tree = tree_flatten(got)
    if a_tree != b_tree:
        shown = [
            [f"{t.dtype}{list(t.shape)}" if isinstance(t, torch.Tensor) else t for t in leaves] for leaves in (a_leaves, b_leaves)
        ]
        return f"structure: {shown[0]} became {shown[1]}"
    for i, (a, b) in enumerate(zip(a_leaves, b_leaves, strict=True)):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            text = _tensor_difference(a, b, tolerance)
        else:
            text = _value_difference(a, b, tolerance)
        if text:
            return f"leaf {i}: {text}"
    a_sharing, b_sharing = sharing(a_leaves), sharing(b_leaves)
    return None if a_sharing == b_sharing else f"shared memory: {a_sharing} became {b_sharing}"


def sharing(leaves: list[Any]) -> list[int]:
    """For every strided tensor, the position of the first one on the same storage."""
    first: dict[int, int] = {}
    tensors = [t for t in leaves if isinstance(t, torch.Tensor) and t.layout is torch.strided]
    return [first.setdefault(t.untyped_storage()._cdata, i) for i, t in enumerate(tensors)]


def _value_difference(a: Any, b: Any, tolerance: float | None) -> str | None:
    same = type(a) is type(b) and (a == b or (a != a and b != b))
    if type(a) is type(b) is float and tolerance is not None:
        same = same or math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
    return None if same else f"{a!r} became {b!r}"


def _tensor_difference(a: torch.Tensor, b: torch.Tensor, tolerance: float | None) -> str | None:
    for name, read in _METADATA.items():
        if read(a) != read(b):
            return f"{name}: {read(a)} became {read(b)}"
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if torch.equal(bits(a), bits(b)):
        return None
    if tolerance is not None:
        tolerance *= 30 if a.dtype in (torch.float16, torch.bfloat16) else 1
        if torch.allclose(a, b, tolerance, tolerance, equal_nan=True):
            return None
    return f"values:\n{a}\nbecame\n{b}"


_METADATA = {
    "type": type,
    "layout": lambda t: t.layout,
    "shape": lambda t: t.shape,
    "stride": lambda t: t.stride() if t.layout is torch.strided else None,
    "offset": lambda t: t.storage_offset() if t.layout is torch.strided else None,
    "dtype": lambda t: t.dtype,
    "requires_grad": lambda t: t.requires_grad,
    "is_leaf": lambda t: _or_error(lambda: t.is_leaf),
    "conjugate": lambda t: t.is_conj(),
    "negative": lambda t: t.is_neg(),
    "storage bytes": lambda t: t.untyped_storage().nbytes() if t.layout is torch.strided else None,
}


def _or_error(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except RuntimeError as error:  # a view that autograd no longer lets anybody use
        return str(error)


def bits(t: torch.Tensor) -> torch.Tensor:
    """The values as a flat tensor of bytes."""
    return torch.empty(t.shape, dtype=t.dtype).copy_(t.detach()).view(-1).view(torch.uint8)
