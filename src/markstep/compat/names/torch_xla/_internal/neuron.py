"""`torch_xla._internal.neuron`: AWS Neuron: not supported."""

from markstep.xla.notices import unsupported

_INSTEAD = "Markstep runs on CPU and CUDA devices"
initialize_env = unsupported("_internal.neuron.initialize_env", _INSTEAD)
num_local_processes = unsupported("_internal.neuron.num_local_processes", _INSTEAD)

__all__ = ["initialize_env", "num_local_processes"]
