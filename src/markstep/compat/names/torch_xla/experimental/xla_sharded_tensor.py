"""`torch_xla.experimental.xla_sharded_tensor`: sharding tensors over devices, as it was called before torch_xla 2.2."""

from torch_xla.distributed.spmd.xla_sharding import XLAShard, XLAShardedTensor

__all__ = ["XLAShard", "XLAShardedTensor"]
