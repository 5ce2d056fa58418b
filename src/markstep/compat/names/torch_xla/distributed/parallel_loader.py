"""`torch_xla.distributed.parallel_loader`: loaders."""

from markstep.xla.loader import MpDeviceLoader, ParallelLoader, PerDeviceLoader

__all__ = ["MpDeviceLoader", "ParallelLoader", "PerDeviceLoader"]
