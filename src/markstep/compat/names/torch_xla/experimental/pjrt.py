"""`torch_xla.experimental.pjrt`: processes and devices, under the name before torch_xla 2.1."""

from markstep.xla.legacy_pjrt import (
    addressable_device_count,
    broadcast_master_param,
    device_attributes,
    device_type,
    global_device_attributes,
    global_device_count,
    global_ordinal,
    local_device_count,
    local_ordinal,
    local_process_count,
    process_count,
    process_index,
    rendezvous,
    requires_pjrt,
    set_device_type,
    using_pjrt,
    world_size,
    xla_device,
)
from markstep.xla.legacy_pjrt import old_spawn as spawn
from markstep.xla.legacy_pjrt import old_spawn_threads as spawn_threads

__all__ = [
    "addressable_device_count",
    "broadcast_master_param",
    "device_attributes",
    "device_type",
    "global_device_attributes",
    "global_device_count",
    "global_ordinal",
    "local_device_count",
    "local_ordinal",
    "local_process_count",
    "process_count",
    "process_index",
    "rendezvous",
    "requires_pjrt",
    "set_device_type",
    "spawn",
    "spawn_threads",
    "using_pjrt",
    "world_size",
    "xla_device",
]
