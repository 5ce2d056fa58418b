"""`torch_xla.experimental.callback`: waiting for values."""

from markstep.xla.callbacks import on_ready_callback, on_ready_event

__all__ = ["on_ready_callback", "on_ready_event"]
