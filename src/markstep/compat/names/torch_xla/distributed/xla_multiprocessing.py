"""`torch_xla.distributed.xla_multiprocessing`: starting processes."""

from markstep.xla.spawn import MpModelWrapper, MpSerialExecutor, create_optimized_replica_groups, spawn

__all__ = ["MpModelWrapper", "MpSerialExecutor", "create_optimized_replica_groups", "spawn"]
