"""`torch_xla.distributed.fsdp.consolidate_sharded_ckpts`: joining sharded checkpoints: not supported."""

from markstep.xla.notices import unsupported

_INSTEAD = "use torch.distributed.fsdp, or ZeroRedundancyOptimizer"
main = unsupported("distributed.fsdp.consolidate_sharded_ckpts.main", _INSTEAD)

__all__ = ["main"]
