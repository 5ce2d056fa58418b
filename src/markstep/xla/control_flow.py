"""Loops that torch_xla gives XLA as loops, as Python loops: gradient accumulation, scan, while."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten


def gradient_accumulation(
    train_step: Callable[..., Any], iterable_tensors: Sequence[torch.Tensor], model: torch.nn.Module, *carried_tensors: Any
) -> Any:
    """Calls `train_step` for each slice along dimension 0 and accumulates gradients, divided by the number of slices.

    Args:
        train_step: gives the loss, or (loss, *carried tensors).
        iterable_tensors: what is sliced; all have the same length.
        model: whose parameters get gradients.
        *carried_tensors: given to the first call; each call gives those of the next.

    Returns:
        The mean loss, or (mean loss, *carried tensors).

    Raises:
        ValueError: there are no tensors, or they differ in length, or are empty.
        AssertionError: `train_step` writes to a tensor that it was given.
    """
    if not iterable_tensors:
        raise ValueError("iterable_tensors cannot be empty")
    for i, t in enumerate(iterable_tensors):
        if not isinstance(t, torch.Tensor):
            raise ValueError(f"Element {i} of iterable_tensors is not a tensor")
        if t.numel() == 0:
            raise ValueError(f"Element {i} of iterable_tensors is empty")
        if t.size(0) != iterable_tensors[0].size(0):
            raise ValueError(f"Element {i} of iterable_tensors has {t.size(0)} slices, not {iterable_tensors[0].size(0)}")
    count = iterable_tensors[0].size(0)
    total: torch.Tensor | None = None
    carried: tuple[Any, ...] = carried_tensors
    for i in range(count):
        given = [(t, t._version) for t in (*iterable_tensors, *carried) if isinstance(t, torch.Tensor)]
        result = train_step(*(t[i] for t in iterable_tensors), *carried)
        if any(t._version != version for t, version in given):
            raise AssertionError("train_step writes to a tensor that it was given: compute a new one and return it")
        loss, *new = result if isinstance(result, tuple) else (result,)
        if len(new) != len(carried):
            raise ValueError(f"train_step gave {len(new)} carried tensors, but there are {len(carried)}")
        loss = loss / count
        loss.backward()
        total = loss.detach() if total is None else total + loss.detach()
        carried = tuple(t.detach() if isinstance(t, torch.Tensor) else t for t in new)
    return (total, *carried) if carried else total


def scan(
    fn: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, partition_fn: Any = None, is_fn_pure: bool = False
) -> tuple[Any, Any]:
    """Calls (carry, y) = fn(carry, x) for each slice of `xs` along dimension 0.

    Args:
        fn: the body.
        init: the first carry: nested tensors.
        xs: nested tensors, or None leaves.
        partition_fn: has no effect.
        is_fn_pure: has no effect.

    Returns:
        The last carry, and the ys stacked along a new dimension 0.

    Raises:
        ValueError: `xs` has no tensor.
    """
    leaves = [x for x in tree_flatten(xs)[0] if isinstance(x, torch.Tensor)]
    if not leaves:
        raise ValueError("xs has no tensor to scan over")
    carry, ys = init, []
    for i in range(leaves[0].size(0)):
        carry, y = fn(carry, tree_map(lambda x, i=i: x[i] if isinstance(x, torch.Tensor) else x, xs))
        ys.append(y)
    flat, spec = [tree_flatten(y)[0] for y in ys], tree_flatten(ys[0])[1]
    return carry, tree_unflatten([None if c[0] is None else torch.stack(c) for c in zip(*flat, strict=True)], spec)


def scan_layers(layers: Iterable[torch.nn.Module], input_data: Any, partition_fn: Any = None, is_layer_pure: bool = False) -> Any:
    """Applies layers one after the other. Markstep finds that they are alike and compiles them once.

    Args:
        layers: modules.
        input_data: of the first one.
        partition_fn: has no effect.
        is_layer_pure: has no effect.
    """
    for layer in layers:
        input_data = layer(input_data)
    return input_data


def while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any, additional_inputs: Any = None) -> Any:
    """Repeats the body while the condition holds; reads the condition's value every time."""
    values, more = tuple(carried_inputs), tuple(additional_inputs or ())
    while bool(cond_fn(*values, *more)):
        result = body_fn(*values, *more)
        values = tuple(result) if isinstance(result, tuple | list) else (result,)
    return values


def fori_loop(lower: Any, upper: Any, body_fun: Callable[..., Any], *input_value: Any) -> Any:
    """Calls result = body_fun(i, *values) for i from `lower` to `upper` - 1, each with the result of the one before."""
    values: tuple[Any, ...] = input_value
    for i in range(int(lower), int(upper)):
        result = body_fun(i, *values)
        values = tuple(result) if isinstance(result, tuple | list) else (result,)
    return values if len(values) != 1 else values[0]
