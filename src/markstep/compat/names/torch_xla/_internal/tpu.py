"""`torch_xla._internal.tpu`: TPUs: there are none."""

from markstep.xla.notices import unsupported


def num_available_chips() -> int:
    """0: Markstep does not run on TPUs."""
    return 0


def num_available_devices() -> int:
    """0: Markstep does not run on TPUs."""
    return 0


def version() -> int:
    """-1: Markstep does not run on TPUs."""
    return -1


def num_tpu_workers() -> int:
    """0: Markstep does not run on TPUs."""
    return 0


get_tpu_env = unsupported("torch_xla._internal.tpu.get_tpu_env", "Markstep runs on CPU and CUDA devices")
get_worker_ips = unsupported("torch_xla._internal.tpu.get_worker_ips", "Markstep runs on CPU and CUDA devices")

__all__ = ["get_tpu_env", "get_worker_ips", "num_available_chips", "num_available_devices", "num_tpu_workers", "version"]
