"""`torch_xla.amp.syncfree.adamw`: AdamW whose step is skipped on the device."""

from markstep.xla.syncfree import AdamW

__all__ = ["AdamW"]
