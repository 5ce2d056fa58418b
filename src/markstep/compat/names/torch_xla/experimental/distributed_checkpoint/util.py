"""`torch_xla.experimental.distributed_checkpoint.util`: checkpoints of sharded tensors: not supported."""

from torch_xla.experimental.distributed_checkpoint import prime_optimizer

__all__ = ["prime_optimizer"]
