"""`torch_xla.amp.grad_scaler`: mixed precision."""

from markstep.xla.amp import GradScaler

__all__ = ["GradScaler"]
