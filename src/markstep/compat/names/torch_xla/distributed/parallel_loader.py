"""`torch_xla.distributed.parallel_loader`: loaders."""

from markstep.xla.loader import MpDeviceLoader, ParallelLoader, PerDeviceLoader, PerDeviceQueue

__all__ = ["MpDeviceLoader", "ParallelLoader", "PerDeviceLoader", "PerDeviceQueue"]
