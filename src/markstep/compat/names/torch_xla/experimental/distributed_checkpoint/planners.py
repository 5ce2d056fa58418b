"""`torch_xla.experimental.distributed_checkpoint.planners`: checkpoints of sharded tensors: not supported."""

from torch_xla.experimental.distributed_checkpoint import SPMDLoadPlanner, SPMDSavePlanner

__all__ = ["SPMDLoadPlanner", "SPMDSavePlanner"]
