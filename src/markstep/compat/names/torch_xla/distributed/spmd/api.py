"""`torch_xla.distributed.spmd.api`: sharding tensors over devices: not supported."""

from markstep.xla.notices import unsupported
from torch_xla.distributed.spmd.xla_sharding import auto_policy, xla_distribute_module, xla_distribute_tensor

_INSTEAD = "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp"
convert_to_xla_mesh = unsupported("distributed.spmd.api.convert_to_xla_mesh", _INSTEAD)
convert_to_xla_partition_spec = unsupported("distributed.spmd.api.convert_to_xla_partition_spec", _INSTEAD)

__all__ = [
    "auto_policy",
    "convert_to_xla_mesh",
    "convert_to_xla_partition_spec",
    "xla_distribute_module",
    "xla_distribute_tensor",
]
