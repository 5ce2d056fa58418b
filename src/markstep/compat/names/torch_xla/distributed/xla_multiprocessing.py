"""`torch_xla.distributed.xla_multiprocessing`: starting processes."""

from markstep.xla.spawn import MpModelWrapper, MpSerialExecutor, spawn

__all__ = ["MpModelWrapper", "MpSerialExecutor", "spawn"]
