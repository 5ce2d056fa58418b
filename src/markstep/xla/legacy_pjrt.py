"""`torch_xla.experimental.pjrt`: functions of `torch_xla.runtime` under the name they had before torch_xla 2.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from markstep.xla import collectives, legacy, notices, processes, runtime, spawn as spawning

F = TypeVar("F", bound=Callable[..., Any])


def _moved(fn: F, instead: str = "torch_xla.runtime") -> F:
    return notices.deprecated(f"torch_xla.experimental.pjrt.{fn.__name__}", "2.1", f"{instead}.{fn.__name__}")(fn)


addressable_device_count = _moved(runtime.addressable_device_count)
device_type = _moved(runtime.device_type)
global_device_count = _moved(runtime.global_device_count)
global_ordinal = _moved(runtime.global_ordinal)
host_index = _moved(runtime.host_index)
local_device_count = _moved(runtime.local_device_count)
local_ordinal = _moved(runtime.local_ordinal)
local_process_count = _moved(runtime.local_process_count)
process_count = _moved(runtime.process_count)
process_index = _moved(runtime.process_index)
set_device_type = _moved(runtime.set_device_type)
world_size = _moved(runtime.world_size)
device_attributes = notices.deprecated(
    "torch_xla.experimental.pjrt.device_attributes", "2.1", "torch_xla.runtime.runtime_device_attributes"
)(runtime.runtime_device_attributes)
broadcast_master_param = _moved(collectives.broadcast_master_param, "torch_xla.core.xla_model")
rendezvous = _moved(collectives.rendezvous, "torch_xla.core.xla_model")
requires_pjrt = legacy.requires_pjrt
using_pjrt = legacy.using_pjrt
xla_device = legacy.xla_device
