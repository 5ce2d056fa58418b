"""`torch_xla.experimental.distributed_checkpoint`: checkpoints of sharded tensors: not supported."""

from typing import Any

from markstep.xla.notices import unsupported, unsupported_class

_INSTEAD = "use torch.distributed.checkpoint"
prime_optimizer = unsupported("experimental.distributed_checkpoint.prime_optimizer", _INSTEAD)
CheckpointManager: Any = unsupported_class("experimental.distributed_checkpoint.CheckpointManager", _INSTEAD)
SPMDLoadPlanner: Any = unsupported_class("experimental.distributed_checkpoint.SPMDLoadPlanner", _INSTEAD)
SPMDSavePlanner: Any = unsupported_class("experimental.distributed_checkpoint.SPMDSavePlanner", _INSTEAD)

__all__ = ["CheckpointManager", "SPMDLoadPlanner", "SPMDSavePlanner", "prime_optimizer"]
