"""`torch_xla.distributed.spmd.xla_sharded_tensor`: sharding tensors over devices: not supported."""

from torch_xla.distributed.spmd.xla_sharding import XLAShard, XLAShardedTensor

__all__ = ["XLAShard", "XLAShardedTensor"]
