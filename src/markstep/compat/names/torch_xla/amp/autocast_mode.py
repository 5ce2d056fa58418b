"""`torch_xla.amp.autocast_mode`: mixed precision."""

from markstep.xla.amp import autocast

__all__ = ["autocast"]
