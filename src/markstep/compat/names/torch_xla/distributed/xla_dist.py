"""`torch_xla.distributed.xla_dist`: starting a script on all machines of a TPU pod: not supported."""

from typing import Any

from markstep.xla.notices import unsupported, unsupported_class

_INSTEAD = "start the script on each machine with torchrun"
get_args_parser = unsupported("distributed.xla_dist.get_args_parser", _INSTEAD)
resolve_and_execute = unsupported("distributed.xla_dist.resolve_and_execute", _INSTEAD)
DistributedExecutor: Any = unsupported_class("distributed.xla_dist.DistributedExecutor", _INSTEAD)

__all__ = ["DistributedExecutor", "get_args_parser", "resolve_and_execute"]
