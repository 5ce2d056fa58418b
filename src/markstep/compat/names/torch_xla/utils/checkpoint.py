"""`torch_xla.utils.checkpoint`: activation checkpointing."""

from markstep.xla.checkpoint import checkpoint

__all__ = ["checkpoint"]
