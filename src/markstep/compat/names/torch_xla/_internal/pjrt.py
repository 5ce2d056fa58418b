"""`torch_xla._internal.pjrt`: starting processes."""

from markstep.xla.spawn import spawn

__all__ = ["spawn"]
