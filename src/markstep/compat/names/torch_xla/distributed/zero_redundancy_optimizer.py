"""`torch_xla.distributed.zero_redundancy_optimizer`: ZeRO stage 1."""

from markstep.xla.zero import ZeroRedundancyOptimizer

__all__ = ["ZeroRedundancyOptimizer"]
