"""`torch_xla.amp`: mixed precision."""

from markstep.xla.amp import GradScaler, autocast
from torch_xla.amp import syncfree

__all__ = ["GradScaler", "autocast", "syncfree"]
