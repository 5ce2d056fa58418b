"""`smdistributed.dataparallel.torch.parallel.distributed`: the API before SMDDP 1.4."""

from markstep.distributed.smddp_legacy import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
