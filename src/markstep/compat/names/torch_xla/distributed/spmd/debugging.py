"""`torch_xla.distributed.spmd.debugging`: sharding tensors over devices: not supported."""

from markstep.xla.notices import unsupported

_INSTEAD = "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp"
visualize_sharding = unsupported("distributed.spmd.debugging.visualize_sharding", _INSTEAD)
visualize_tensor_sharding = unsupported("distributed.spmd.debugging.visualize_tensor_sharding", _INSTEAD)

__all__ = ["visualize_sharding", "visualize_tensor_sharding"]
