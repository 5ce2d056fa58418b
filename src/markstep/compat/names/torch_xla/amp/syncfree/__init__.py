"""`torch_xla.amp.syncfree`: optimizers whose step is skipped on the device."""

from markstep.xla.syncfree import SGD, Adam, AdamW

__all__ = ["Adam", "AdamW", "SGD"]
