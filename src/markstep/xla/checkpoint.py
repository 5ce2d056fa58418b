"""Activation checkpointing under torch_xla's signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool = True, **kwargs: Any) -> Any:
    """`torch.utils.checkpoint.checkpoint` in its reentrant form: activations are computed again in the backward.

    Args:
        function: part of the forward.
        *args: its arguments.
        use_reentrant: must be True.
        **kwargs: `preserve_rng_state`: draw the same random numbers again; True by default.

    Raises:
        ValueError: `use_reentrant` is False, or there is another keyword argument.
    """
    preserve = kwargs.pop("preserve_rng_state", True)
    if kwargs:
        raise ValueError(f"unexpected keyword arguments: {', '.join(kwargs)}")
    if not use_reentrant:
        raise ValueError("use_reentrant must be True here: use torch.utils.checkpoint.checkpoint for the other form")
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=True, preserve_rng_state=preserve)


def checkpoint_module(module: torch.nn.Module) -> torch.nn.Module:
    """Changes a module so that each call of its forward is checkpointed; keyword arguments too.

    Raises:
        TypeError: it is no module.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module, not {type(module).__name__}")
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(original, *args, use_reentrant=not kwargs, **kwargs)

    module.forward = forward
    return module
