"""`torch_xla.distributed.fsdp.state_dict_utils`: fully sharded data parallelism: not supported."""

from markstep.xla.notices import unsupported

_INSTEAD = "use torch.distributed.fsdp, or ZeroRedundancyOptimizer"
consolidate_sharded_model_checkpoints = unsupported("distributed.fsdp.consolidate_sharded_model_checkpoints", _INSTEAD)
consolidate_sharded_state_dicts = unsupported("distributed.fsdp.consolidate_sharded_state_dicts", _INSTEAD)

__all__ = ["consolidate_sharded_model_checkpoints", "consolidate_sharded_state_dicts"]
