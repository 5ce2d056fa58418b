"""`torch_xla.utils.checkpoint`: activation checkpointing."""

from torch.utils.checkpoint import CheckpointFunction

from markstep.xla.checkpoint import checkpoint

__all__ = ["CheckpointFunction", "checkpoint"]
