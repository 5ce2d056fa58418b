"""`torch_xla.experimental.spmd_fully_sharded_data_parallel`: sharding tensors over devices: not supported."""

from typing import Any

from markstep.xla.notices import unsupported_class

_INSTEAD = "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp"
SpmdFullyShardedDataParallel: Any = unsupported_class("spmd.SpmdFullyShardedDataParallel", _INSTEAD)

__all__ = ["SpmdFullyShardedDataParallel"]
