"""Starting one process for each device."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from markstep.xla import device, processes


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> Any:
    """Runs `fn(ordinal, *args)` in several processes, which train together; in this one if a launcher started all of them.

    Args:
        fn: the function; with start_method "spawn" it must be importable from its module.
        args: its other arguments.
        nprocs: how many on this machine. By default one for each GPU (GPU_NUM_DEVICES of them), or CPU_NUM_DEVICES; 1 runs
            the function in this process. More than there are GPUs are not started, with a warning.
        join: wait for them. An error in one ends all, and is raised.
        daemon: see `multiprocessing.Process`.
        start_method: see `multiprocessing.get_context`.

    Returns:
        None, or without `join` the object to join.

    Raises:
        torch.multiprocessing.ProcessRaisedException: one of the processes failed; has its traceback.
        torch.multiprocessing.ProcessExitedException: one of the processes ended with an error or was killed.
    """
    if dist.is_available() and dist.is_torchelastic_launched():
        if nprocs not in (None, 1, processes.local_world_size()):
            started = processes.local_world_size()
            warnings.warn(f"nprocs={nprocs}, but the launcher has started {started} processes: running in these", stacklevel=2)
        return fn(processes.ordinal(), *args)
    available = _default_count()
    count = available if nprocs is None else nprocs
    if count < 1:
        raise ValueError(f"nprocs={nprocs}: there must be at least one process")
    if device.real_device().type == "cuda" and count > torch.cuda.device_count():
        warnings.warn(f"nprocs={count}, but there are {available} CUDA devices: starting {available} processes", stacklevel=2)
        count = available
    hosts = int(os.environ.get("XRT_SHARD_WORLD_SIZE", 1)) if "XRT_HOST_ORDINAL" in os.environ else 1
    if count == 1 and hosts == 1:
        return fn(processes.ordinal(), *args)
    host = int(os.environ.get("XRT_HOST_ORDINAL", 0))
    address, store = _meeting_point(host, hosts)
    shared = {
        "WORLD_SIZE": str(hosts * count),
        "LOCAL_WORLD_SIZE": str(count),
        "GROUP_RANK": str(host),
        "MASTER_ADDR": address[0],
        "MASTER_PORT": str(address[1]),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is this process's, which outlives the workers
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    context = mp.start_processes(
        _worker, args=(fn, args, shared, host * count), nprocs=count, join=False, daemon=daemon, start_method=start_method
    )
    context._markstep_store = store
    if not join:
        return context
    while not context.join():
        pass
    return None


def _default_count() -> int:
    if device.real_device().type == "cuda":
        return min(int(os.environ.get("GPU_NUM_DEVICES", torch.cuda.device_count())), torch.cuda.device_count())
    return int(os.environ.get("CPU_NUM_DEVICES", 1))


def _meeting_point(host: int, hosts: int) -> tuple[tuple[str, int], Any]:
    """Address of the store through which workers find each other, and the store on the machine that has it."""
    if hosts == 1:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        return ("127.0.0.1", store.port), store
    name, _, port = os.environ.get("XRT_MESH_SERVICE_ADDRESS", "").rpartition(":")
    if not name:
        raise RuntimeError(f"there are {hosts} machines, but XRT_MESH_SERVICE_ADDRESS, host:port of the first, is not set")
    own = None
    if host == 0:
        own = dist.TCPStore(name, int(port), is_master=True, wait_for_workers=False, timeout=timedelta(minutes=10))
    return (name, int(port)), own


def _worker(index: int, fn: Callable[..., Any], args: tuple[Any, ...], shared: dict[str, str], first: int) -> None:
    os.environ.update(shared, RANK=str(first + index), LOCAL_RANK=str(index))
    processes.forget()
    device.real_device.cache_clear()
    device.install()
    if device.real_device().type == "cuda":
        torch.cuda.set_device(device.real_device())
    try:
        fn(first + index, *args)
    finally:
        processes.forget()


def launch(
    fn: Callable[..., Any], args: tuple[Any, ...] = (), start_method: str = "spawn", debug_single_process: bool = False
) -> Any:
    """Runs `fn(ordinal, *args)` in one process for each device; under torchrun in this process, as fn(LOCAL_RANK, *args).

    Args:
        fn: the function.
        args: its other arguments.
        start_method: see `spawn`.
        debug_single_process: run it in this process only.
    """
    if dist.is_available() and dist.is_torchelastic_launched():
        return fn(processes.local_ordinal(), *args)
    return spawn(fn, args, nprocs=1 if debug_single_process else None, start_method=start_method)


def create_optimized_replica_groups() -> None:
    """None, which as `groups` of a collective means all processes: the backend knows how they are connected."""


class MpModelWrapper:
    """A model made once, which each process moves to the device.

    Args:
        model: on the CPU.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def to(self, device: Any) -> torch.nn.Module:
        """The model on the device."""
        return self._model.to(device)


class MpSerialExecutor:
    """Runs a function in all processes, in one after the other: for what downloads or needs much memory.

    `run` has to be called in all processes, equally often.
    """

    def run(self, fn: Callable[[], Any]) -> Any:
        """The result of `fn`, which is called when the processes of smaller ordinals have called theirs."""
        from markstep.xla import collectives

        result = None
        for turn in range(processes.world_size()):
            if turn == processes.ordinal():
                result = fn()
            collectives.gather_bytes(b"", processes.members(None))
        return result
