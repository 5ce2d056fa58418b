"""`torch_xla.distributed.spmd.xla_sharding`: sharding tensors over devices: not supported."""

from typing import Any

from markstep.xla.notices import unsupported, unsupported_class

_INSTEAD = "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp"
_mark_manual_sharding = unsupported("distributed.spmd._mark_manual_sharding", _INSTEAD)
annotate_custom_sharding = unsupported("distributed.spmd.annotate_custom_sharding", _INSTEAD)
auto_policy = unsupported("distributed.spmd.auto_policy", _INSTEAD)
apply_backward_optimization_barrier = unsupported("distributed.spmd.apply_backward_optimization_barrier", _INSTEAD)
clear_sharding = unsupported("distributed.spmd.clear_sharding", _INSTEAD)
disable_manual_sharding = unsupported("distributed.spmd.disable_manual_sharding", _INSTEAD)
enable_manual_sharding = unsupported("distributed.spmd.enable_manual_sharding", _INSTEAD)
get_1d_mesh = unsupported("distributed.spmd.get_1d_mesh", _INSTEAD)
mark_sharding = unsupported("distributed.spmd.mark_sharding", _INSTEAD)
mark_sharding_with_gradients = unsupported("distributed.spmd.mark_sharding_with_gradients", _INSTEAD)
set_global_mesh = unsupported("distributed.spmd.set_global_mesh", _INSTEAD)
shard_as = unsupported("distributed.spmd.shard_as", _INSTEAD)
wrap_if_sharded = unsupported("distributed.spmd.wrap_if_sharded", _INSTEAD)
xla_distribute_module = unsupported("distributed.spmd.xla_distribute_module", _INSTEAD)
xla_distribute_tensor = unsupported("distributed.spmd.xla_distribute_tensor", _INSTEAD)
xla_patched_nn_linear_forward = unsupported("distributed.spmd.xla_patched_nn_linear_forward", _INSTEAD)
HybridMesh: Any = unsupported_class("distributed.spmd.HybridMesh", _INSTEAD)
MarkShardingFunction: Any = unsupported_class("distributed.spmd.MarkShardingFunction", _INSTEAD)
Mesh: Any = unsupported_class("distributed.spmd.Mesh", _INSTEAD)
ShardingSpec: Any = unsupported_class("distributed.spmd.ShardingSpec", _INSTEAD)
ShardingType: Any = unsupported_class("distributed.spmd.ShardingType", _INSTEAD)
XLAPatchedLinear: Any = unsupported_class("distributed.spmd.XLAPatchedLinear", _INSTEAD)
XLAShard: Any = unsupported_class("distributed.spmd.XLAShard", _INSTEAD)
XLAShardedTensor: Any = unsupported_class("distributed.spmd.XLAShardedTensor", _INSTEAD)

PartitionSpec = tuple[tuple[int | str, ...] | int | str | None, ...]


def get_global_mesh() -> None:
    """None: no mesh can be set."""


wrap_as_sharded_tensor = unsupported("torch_xla.distributed.spmd.wrap_as_sharded_tensor", _INSTEAD)
unwrap_sharded_tensor = unsupported("torch_xla.distributed.spmd.unwrap_sharded_tensor", _INSTEAD)
apply_xla_patch_to_nn_linear = unsupported("torch_xla.distributed.spmd.apply_xla_patch_to_nn_linear", _INSTEAD)

__all__ = [
    "HybridMesh",
    "MarkShardingFunction",
    "Mesh",
    "PartitionSpec",
    "ShardingSpec",
    "ShardingType",
    "XLAPatchedLinear",
    "XLAShard",
    "XLAShardedTensor",
    "_mark_manual_sharding",
    "annotate_custom_sharding",
    "apply_backward_optimization_barrier",
    "apply_xla_patch_to_nn_linear",
    "auto_policy",
    "clear_sharding",
    "disable_manual_sharding",
    "enable_manual_sharding",
    "get_1d_mesh",
    "get_global_mesh",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "set_global_mesh",
    "shard_as",
    "unwrap_sharded_tensor",
    "wrap_as_sharded_tensor",
    "wrap_if_sharded",
    "xla_distribute_module",
    "xla_distribute_tensor",
    "xla_patched_nn_linear_forward",
]
