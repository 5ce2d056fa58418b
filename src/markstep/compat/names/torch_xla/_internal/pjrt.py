"""`torch_xla._internal.pjrt`: starting processes."""

from markstep.xla.legacy_pjrt import spawn

__all__ = ["spawn"]
