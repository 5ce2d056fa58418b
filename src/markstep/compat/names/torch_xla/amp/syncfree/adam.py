"""`torch_xla.amp.syncfree.adam`: Adam whose step is skipped on the device."""

from markstep.xla.syncfree import Adam

__all__ = ["Adam"]
