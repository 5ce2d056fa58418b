"""`torch_xla._internal.gpu`: GPUs."""

from markstep.xla.runtime import local_process_count as num_local_processes

__all__ = ["num_local_processes"]
