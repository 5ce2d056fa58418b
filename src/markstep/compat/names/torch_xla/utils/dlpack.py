"""`torch_xla.utils.dlpack`: tensors for other libraries."""

from markstep.xla.exchange import from_dlpack, to_dlpack

__all__ = ["from_dlpack", "to_dlpack"]
