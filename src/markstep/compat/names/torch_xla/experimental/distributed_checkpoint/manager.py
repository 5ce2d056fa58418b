"""`torch_xla.experimental.distributed_checkpoint.manager`: checkpoints of sharded tensors: not supported."""

from torch_xla.experimental.distributed_checkpoint import CheckpointManager

__all__ = ["CheckpointManager"]
