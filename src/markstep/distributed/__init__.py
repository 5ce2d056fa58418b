"""Data-parallel training: gradients averaged inside the step, starting processes, the backend `smddp`."""

from markstep.distributed.data_parallel import DataParallel

__all__ = ["DataParallel"]
