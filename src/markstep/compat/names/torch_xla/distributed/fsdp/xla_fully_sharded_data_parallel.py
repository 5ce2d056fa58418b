"""`torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel`: fully sharded data parallelism: not supported."""

from typing import Any

from markstep.xla.notices import unsupported_class

_INSTEAD = "use torch.distributed.fsdp, or ZeroRedundancyOptimizer"
XlaFullyShardedDataParallel: Any = unsupported_class("fsdp.XlaFullyShardedDataParallel", _INSTEAD)

__all__ = ["XlaFullyShardedDataParallel"]
