"""`smdistributed.dataparallel.torch.torch_smddp`: importing it registers the backend smddp."""

import markstep.distributed.smddp  # noqa: F401

__all__: list[str] = []
