"""Which devices and processes there are. One process has one device."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch

from markstep.xla import device as xla
from markstep.xla import metrics, processes
from markstep.xla.processes import local_ordinal, local_world_size, world_size

__all__ = ["local_ordinal", "world_size"]


def device(index: int | None = None) -> torch.device:
    """The xla device of this process.

    Raises:
        RuntimeError: `index` is neither None nor 0.
    """
    if index:
        raise RuntimeError(
            f"there is no device xla:{index}: a process has the one device xla:0; several workers are several processes "
            "(torch_xla.launch, xmp.spawn, torchrun)"
        )
    xla.install()
    metrics.begin_executing()
    return torch.device("xla", 0)


def devices() -> list[torch.device]:
    """The devices of this process."""
    return [device()]


def real_devices() -> list[str]:
    """Names of the hardware behind the devices of this process, such as "CPU:0"."""
    return [real_name()]


def real_name() -> str:
    """Name of the hardware behind the device, such as "CUDA:1"."""
    return f"{xla.hardware()}:{local_ordinal()}"


def device_count() -> int:
    """Number of devices of this process: 1."""
    return 1


def device_type() -> str:
    """Kind of the hardware: "CPU" or "CUDA", or what MARKSTEP_XLA_HARDWARE says."""
    return xla.hardware()


def set_device_type(pjrt_device: str) -> None:
    """Asks for a kind of hardware, before the device is used. Markstep has "CPU" and "CUDA"; for others it warns."""
    wanted = pjrt_device.upper()
    if wanted in ("CPU", "CUDA", "GPU"):
        os.environ["PJRT_DEVICE"] = wanted
    else:
        warnings.warn(f"Markstep runs on CPU and CUDA devices: {pjrt_device!r} has no effect", stacklevel=2)


def is_bf16_supported() -> bool:
    """Whether the hardware computes in bf16."""
    real = xla.real_device()
    return torch.cuda.is_bf16_supported() if real.type == "cuda" else True


def global_ordinal() -> int:
    """Rank of this process among all."""
    return processes.ordinal()


def local_process_count() -> int:
    """Number of processes on this machine."""
    return local_world_size()


def global_device_count() -> int:
    """Number of devices of all processes."""
    return world_size()


def local_device_count() -> int:
    """Number of devices of the processes of this machine."""
    return local_world_size()


def addressable_device_count() -> int:
    """Number of devices of this process: 1."""
    return 1


def process_index() -> int:
    """Rank of this process among all."""
    return processes.ordinal()


def process_count() -> int:
    """Number of all processes."""
    return world_size()


def host_index() -> int:
    """Number of this machine."""
    return int(os.environ.get("GROUP_RANK", processes.ordinal() // local_world_size()))


def runtime_device_attributes(device: str) -> dict[str, Any]:
    """What is known about the hardware behind a device.

    Raises:
        RuntimeError: the device is not of this process.
    """
    if device not in ("xla:0", real_name()):
        raise RuntimeError(f"there is no device {device!r}: this process has xla:0, which is {real_name()}")
    return _attributes(real_name())


def global_runtime_device_attributes() -> list[dict[str, Any]]:
    """What is known about the hardware behind the devices of all processes."""
    return [_attributes(f"{xla.hardware()}:{i}") for i in range(world_size())]


def _attributes(name: str) -> dict[str, Any]:
    return {"name": name, "num_cores": 1}


def global_runtime_device_count() -> int:
    """Number of devices of all processes."""
    return world_size()


def addressable_runtime_device_count() -> int:
    """Number of devices of this process: 1."""
    return 1


def use_spmd(auto: bool | None = False) -> None:
    """Not supported.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        "sharding tensors over devices needs XLA itself: start one process for each device and use DistributedDataParallel "
        "or torch.distributed.fsdp"
    )


def is_spmd() -> bool:
    """Whether tensors are sharded over devices: never."""
    return False


def get_master_ip() -> str:
    """Address of the machine of process 0."""
    return processes.master_address()


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Keeps compiled programs in a directory, for the next run. Call it before the first step.

    Args:
        path: the directory; made if it is not there, readable by its owner only.
        readonly: not supported, the directory is written to; warns.
    """
    if readonly:
        warnings.warn("Markstep's cache has no read-only mode: new programs are added to it", stacklevel=2)
    os.environ["MARKSTEP_CACHE_DIR"] = path


def get_num_cached_compilation_graph() -> int:
    """Number of programs that this process has compiled."""
    from markstep.engine import report

    return sum(p.compile_s is not None for p in report.current().programs)
