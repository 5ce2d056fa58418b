"""Waiting for a tensor's value without ending the step."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from markstep.xla import device


def on_ready_callback(tensor: torch.Tensor, callback: Callable[[torch.Tensor], None]) -> None:
    """Calls `callback(tensor)` in another thread when the tensor has its value, which is computed now."""
    device.to_real(tensor.detach())
    threading.Thread(target=callback, args=(tensor,), name="on_ready_callback").start()


def on_ready_event(tensor: torch.Tensor) -> threading.Event:
    """An event that is set when the tensor has its value, which is computed now."""
    event = threading.Event()
    on_ready_callback(tensor, lambda _: event.set())
    return event
