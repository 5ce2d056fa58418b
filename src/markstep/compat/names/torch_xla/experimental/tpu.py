"""`torch_xla.experimental.tpu`: TPUs, under the name before torch_xla 2.1: there are none."""

from torch_xla._internal.tpu import get_tpu_env, get_worker_ips, num_available_chips, num_available_devices, version

__all__ = ["get_tpu_env", "get_worker_ips", "num_available_chips", "num_available_devices", "version"]
