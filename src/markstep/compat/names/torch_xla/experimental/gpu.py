"""`torch_xla.experimental.gpu`: GPUs, under the name before torch_xla 2.1."""

from torch_xla._internal.gpu import num_local_processes

__all__ = ["num_local_processes"]
