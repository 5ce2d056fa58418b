"""`torch_xla.core.functions`: collectives with gradients."""

from markstep.xla.functions import (
    AllGather,
    AllReduce,
    AllReduceSumLayer,
    SyncBatchNorm,
    all_gather,
    all_reduce,
    distributed_mm,
    nms,
)

__all__ = ["AllGather", "AllReduce", "AllReduceSumLayer", "SyncBatchNorm", "all_gather", "all_reduce", "distributed_mm", "nms"]
