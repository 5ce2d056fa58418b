"""`torch_xla._internal.xpu`: Intel's GPUs: not supported."""

from markstep.xla.notices import unsupported

_INSTEAD = "Markstep runs on CPU and CUDA devices"
num_local_processes = unsupported("_internal.xpu.num_local_processes", _INSTEAD)

__all__ = ["num_local_processes"]
