"""`torch_xla.amp.syncfree.sgd`: SGD whose step is skipped on the device."""

from markstep.xla.syncfree import SGD

__all__ = ["SGD"]
