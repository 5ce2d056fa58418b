"""`torch_xla.experimental.pjrt`: functions of `torch_xla.runtime` under the name they had before torch_xla 2.1."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from markstep.xla import collectives, legacy, notices, processes, runtime
from markstep.xla.spawn import spawn as start_processes

F = TypeVar("F", bound=Callable[..., Any])


def _moved(fn: F, instead: str = "torch_xla.runtime") -> F:
    return notices.deprecated(f"torch_xla.experimental.pjrt.{fn.__name__}", "2.1", f"{instead}.{fn.__name__}")(fn)


addressable_device_count = _moved(runtime.addressable_device_count)
device_type = _moved(runtime.device_type)
global_device_count = _moved(runtime.global_device_count)
global_ordinal = _moved(runtime.global_ordinal)
global_device_attributes = notices.deprecated(
    "torch_xla.experimental.pjrt.global_device_attributes", "2.1", "torch_xla.runtime.global_runtime_device_attributes"
)(runtime.global_runtime_device_attributes)
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


def spawn(fn: Callable[..., Any], nprocs: int | None = None, start_method: str = "spawn", args: tuple[Any, ...] = ()) -> None:
    """Runs `fn(ordinal, *args)` in several processes and waits for them; see `xla_multiprocessing.spawn`."""
    start_processes(fn, args, nprocs, start_method=start_method)


def spawn_threads(fn: Callable[..., Any], args: tuple[Any, ...] = (), start_method: str = "spawn") -> None:
    """Runs `fn(ordinal, *args)` for each device of this process, which has one: no threads are started."""
    fn(processes.ordinal(), *args)


def run_multiprocess(fn: Callable[..., Any], *args: Any, start_method: str = "spawn", **kwargs: Any) -> dict[int, Any]:
    """Runs `fn(*args, **kwargs)` in one process for each device; its results, which are pickled, by ordinal."""
    with tempfile.TemporaryDirectory() as folder:
        start_processes(_keep_result, (folder, fn, args, kwargs), start_method=start_method)
        files = sorted(Path(folder).iterdir(), key=lambda p: int(p.name))
        return {int(p.name): pickle.loads(p.read_bytes()) for p in files}


def _keep_result(ordinal: int, folder: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    Path(folder, str(ordinal)).write_bytes(pickle.dumps(fn(*args, **kwargs)))


old_spawn = _moved(spawn, "torch_xla.distributed.xla_multiprocessing")
old_spawn_threads = notices.deprecated("torch_xla.experimental.pjrt.spawn_threads", "2.1", "torch_xla.launch")(spawn_threads)
