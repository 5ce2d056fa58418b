"""`torch_xla.torch_xla`: devices, steps, launching."""

from markstep.xla.rng import manual_seed
from markstep.xla.runtime import device, device_count, devices, real_devices
from markstep.xla.spawn import launch
from markstep.xla.steps import compile, step, sync

__all__ = ["compile", "device", "device_count", "devices", "launch", "manual_seed", "real_devices", "step", "sync"]
