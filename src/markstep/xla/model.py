"""What is left of `torch_xla.core.xla_model`: devices, ranks, saving, memory, throughput."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO, TypedDict

import torch

from markstep.xla import device as xla
from markstep.xla import notices, processes, runtime
from markstep.xla.structures import for_each_instance, is_xla_tensor, to_cpu


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """Deprecated since torch_xla 2.8: `torch_xla.device`. `devkind` has no effect."""
    notices.warn_deprecated("xm.xla_device", "2.8", "torch_xla.device")
    return runtime.device(n)


def xrt_world_size(defval: int = 1) -> int:
    """Deprecated since torch_xla 2.5: `xr.world_size`."""
    notices.warn_deprecated("xm.xrt_world_size", "2.5", "torch_xla.runtime.world_size")
    return processes.world_size()


def get_ordinal(defval: int = 0) -> int:
    """Deprecated since torch_xla 2.5: `xr.global_ordinal`."""
    notices.warn_deprecated("xm.get_ordinal", "2.5", "torch_xla.runtime.global_ordinal")
    return processes.ordinal()


def parse_xla_device(device: str | torch.device) -> tuple[str, int]:
    """Deprecated since torch_xla 2.5: kind and index of a device such as "xla:0" or "CPU:0"."""
    notices.warn_deprecated("xm.parse_xla_device", "2.5", "str(device).split(':')")
    return parse_device(device)


def parse_device(device: str | torch.device) -> tuple[str, int]:
    """Kind and index of a device such as "xla:0" or "CPU:0".

    Raises:
        ValueError: the text is not of that form.
    """
    kind, _, index = str(device).partition(":")
    if not kind.isalpha() or not index.isdigit():
        raise ValueError(f"{device!r} is no device: expected a kind and an index, such as 'xla:0'")
    return kind, int(index)


def get_xla_supported_devices(max_devices: int | str | None = None, *_: Any, devkind: str | None = None) -> list[str]:
    """Names of the devices of this process: ["xla:0"]. Before torch_xla 2.6 the first argument was a kind of hardware."""
    kind = max_devices if isinstance(max_devices, str) else devkind
    if kind is not None:
        notices.warn_deprecated("devkind of xm.get_xla_supported_devices", "2.3", "torch_xla.runtime.device_type()")
        if kind.upper() != xla.hardware():
            return []
    return ["xla:0"]


def get_local_ordinal() -> int:
    """Rank of this process among those of its machine."""
    return processes.local_ordinal()


def is_master_ordinal(local: bool = True) -> bool:
    """Whether this process is the first one of its machine, or with local=False of all."""
    return (processes.local_ordinal() if local else processes.ordinal()) == 0


def master_print(*args: Any, fd: TextIO | None = None, local: bool = False, flush: bool = False) -> None:
    """Prints in the first process only: of all, or with local=True of each machine."""
    if is_master_ordinal(local=local):
        print(*args, file=fd or sys.stdout, flush=flush)


def xla_real_devices(devices: Sequence[Any] | None = None) -> list[str]:
    """Names of the hardware behind devices, by default behind all of this process, such as ["CPU:0"]."""
    return [runtime.real_name() for _ in (devices or runtime.devices())]


def xla_device_hw(device: str | torch.device | None = None) -> str:
    """Kind of the hardware behind a device: "CPU" or "CUDA", or what MARKSTEP_XLA_HARDWARE says."""
    return xla.hardware()


def xla_device_kind(device: str | torch.device | None = None) -> str:
    """Name of the hardware's model."""
    real = xla.real_device()
    return torch.cuda.get_device_name(real) if real.type == "cuda" else "cpu"


def xla_replication_devices(local_devices: Sequence[torch.device] | None = None) -> list[str]:
    """Names of the hardware of all processes that train together."""
    return [f"{xla.hardware()}:{i}" for i in range(processes.world_size())]


def set_replication(device: Any, devices: Any) -> None:
    """Has no effect: processes find each other without it."""


def unlazy(tensors: Iterable[torch.Tensor]) -> None:
    """Gives tensors their values without ending the step."""
    xla.flush("torch_xla.core.xla_model.unlazy")


def wait_device_ops(devices: Sequence[str] = ()) -> None:
    """Waits until everything that was asked for so far is computed."""
    xla.flush("torch_xla.core.xla_model.wait_device_ops")
    if xla.real_device().type == "cuda":
        torch.cuda.synchronize(xla.real_device())


def check_view_sharing(obj: Any) -> None:
    """Checks that no two different xla tensors of a nested structure, module or optimizer are views of the same memory.

    Raises:
        RuntimeError: two are; the message gives their shapes.
    """
    owners: dict[int, torch.Tensor] = {}
    if isinstance(obj, torch.nn.Module):
        obj = [*obj.parameters(), *obj.buffers()]
    elif isinstance(obj, torch.optim.Optimizer):
        obj = [obj.param_groups, list(obj.state.values())]

    def check(t: torch.Tensor) -> None:
        key = t.untyped_storage()._cdata
        other = owners.setdefault(key, t)
        if other is not t:
            raise RuntimeError(f"tensors of shapes {tuple(other.shape)} and {tuple(t.shape)} share memory")

    for_each_instance(obj, is_xla_tensor, check)


def save(data: Any, file_or_path: str | Path | Any, master_only: bool = True, global_master: bool = False) -> None:
    """`torch.save` with tensors copied to the CPU; no process waits for another.

    Args:
        data: any nested structure. Tensors that share memory share it in the file.
        file_or_path: where to write.
        master_only: only the first process of each machine writes; otherwise all do.
        global_master: with `master_only`: only the first process of all writes.
    """
    writes = not master_only or is_master_ordinal(local=not global_master)
    on_cpu = to_cpu(data, convert=writes)
    if writes:
        torch.save(on_cpu, file_or_path)


def do_on_ordinals(target: Callable[..., Any], data: Any = (), ordinals: Iterable[int] | int = (0,)) -> Any:
    """Calls `target` with `data`, copied to the CPU, in some processes; returns its result there and None elsewhere.

    Args:
        target: the function.
        data: its arguments: a tuple, or the only one.
        ordinals: the processes.
    """
    chosen = {ordinals} if isinstance(ordinals, int) else set(ordinals)
    runs = processes.ordinal() in chosen
    cpu_data = to_cpu(data, convert=runs)
    if not runs:
        return None
    return target(*cpu_data) if isinstance(cpu_data, tuple) else target(cpu_data)


class DeviceContext:
    """A device, as `device`."""

    def __init__(self, device: str | torch.device) -> None:
        self.device = device


class MemoryInfo(TypedDict):
    """Memory in bytes; on the CPU that of the process."""

    bytes_used: int
    bytes_limit: int
    peak_bytes_used: int


def get_memory_info(device: Any = None) -> MemoryInfo:
    """Memory of the device: what PyTorch's allocator holds on CUDA, resident memory of the process on the CPU."""
    real = xla.real_device()
    if real.type == "cuda":
        return {
            "bytes_used": torch.cuda.memory_allocated(real),
            "bytes_limit": torch.cuda.mem_get_info(real)[1],
            "peak_bytes_used": torch.cuda.max_memory_allocated(real),
        }
    used, peak = _proc("/proc/self/status", "VmRSS"), _proc("/proc/self/status", "VmHWM")
    limit = _proc("/proc/meminfo", "MemTotal")
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = min(limit, int(Path(name).read_text()))
        except (OSError, ValueError):  # no cgroup, or "max"
            continue
    return {"bytes_used": used, "bytes_limit": limit, "peak_bytes_used": max(peak, used)}


def _proc(path: str, field: str) -> int:
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"{path} has no line {field}")


def optimization_barrier_(tensors: list[torch.Tensor]) -> None:
    """Has no effect: Markstep never merges a recomputation with what it repeats."""


class RateTracker:
    """Throughput.

    Args:
        smooth_factor: weight of the rate so far in each new one, between 0 and 1; 0.4 by default.
    """

    def __init__(self, smooth_factor: float | None = None) -> None:
        self._smooth_factor = 0.4 if smooth_factor is None else smooth_factor
        self._start = self._partial_start = time.time()
        self._count = self._partial_count = 0.0
        self._rate: float | None = None

    def add(self, count: float) -> None:
        """Counts so many things that are done."""
        self._count += count
        self._partial_count += count

    def rate(self) -> float:
        """Things per second since the last call, smoothed."""
        now = time.time()
        delta = now - self._partial_start
        if self._partial_count > 0 and delta > 0:
            current = self._partial_count / delta
            if self._rate is not None:
                current = self._rate * self._smooth_factor + current * (1 - self._smooth_factor)
            self._rate = current
            self._partial_start, self._partial_count = now, 0.0
        return self._rate or 0.0

    def global_rate(self) -> float:
        """Things per second since the beginning."""
        return self._count / max(time.time() - self._start, 1e-9)
