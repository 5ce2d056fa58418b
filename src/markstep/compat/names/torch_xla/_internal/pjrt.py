"""`torch_xla._internal.pjrt`: starting processes."""

from markstep.xla.legacy_pjrt import run_multiprocess, spawn, spawn_threads
from markstep.xla.notices import unsupported

initialize_multiprocess = unsupported("_internal.pjrt.initialize_multiprocess", "use torch_xla.launch or torchrun")

__all__ = ["initialize_multiprocess", "run_multiprocess", "spawn", "spawn_threads"]
