"""`torch_xla.distributed.data_parallel`: the threaded DataParallel of early releases."""

from markstep.xla.data_parallel import Context, DataParallel

__all__ = ["Context", "DataParallel"]
