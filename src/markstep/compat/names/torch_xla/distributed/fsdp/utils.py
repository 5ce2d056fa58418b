"""`torch_xla.distributed.fsdp.utils`: checkpointed modules."""

from markstep.xla.checkpoint import checkpoint_module
from markstep.xla.legacy import XLAPatchedLinear, apply_xla_patch_to_nn_linear

__all__ = ["XLAPatchedLinear", "apply_xla_patch_to_nn_linear", "checkpoint_module"]
