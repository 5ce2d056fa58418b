"""Ranks, and the groups of processes that collectives run on.

Collectives have process groups of their own, on the store of the launcher (or of torch.distributed if the program has
initialised it), so that they work before, after and without `torch.distributed.init_process_group`.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore

from markstep.xla import device

_lock = threading.Lock()
_store: Any = None
_groups: dict[tuple[int, ...], Any] = {}


def world_size() -> int:
    """Number of processes that train together."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", 1))


def ordinal() -> int:
    """Rank of this process among all."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ.get("RANK", 0))


def local_ordinal() -> int:
    """Rank of this process among those of its machine."""
    return int(os.environ.get("LOCAL_RANK", ordinal() % local_world_size()))


def local_world_size() -> int:
    """Number of processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))


def members(groups: Sequence[Sequence[int]] | None) -> tuple[int, ...]:
    """The ranks of the group that this process belongs to; all ranks without `groups`.

    Raises:
        ValueError: the groups do not name this process.
    """
    if not groups:
        return tuple(range(world_size()))
    rank = ordinal()
    for group in groups:
        if rank in group:
            return tuple(int(r) for r in group)
    raise ValueError(f"groups={list(map(list, groups))} does not contain this process, whose ordinal is {rank}")


def group(ranks: tuple[int, ...]) -> Any:
    """The process group of these ranks, on the real device, made at first use by its members.

    Raises:
        RuntimeError: several processes were started, but nothing says where they meet.
    """
    with _lock:
        if ranks not in _groups:
            name = "markstep/" + ",".join(map(str, ranks))
            _groups[ranks] = make_group(PrefixStore(name, _shared_store()), ranks.index(ordinal()), len(ranks))
        return _groups[ranks]


def make_group(store: Any, rank: int, size: int, timeout: timedelta | None = None) -> Any:
    """A gloo group for the CPU, an nccl group for CUDA."""
    timeout = timeout or timedelta(minutes=30)
    if device.real_device().type == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(store, rank, size, options)
    return dist.ProcessGroupGloo(store, rank, size, timeout)


def _shared_store() -> Any:
    global _store
    if _store is None:
        if dist.is_initialized():
            _store = dist.distributed_c10d._get_default_store()
        elif "MASTER_ADDR" not in os.environ:
            raise RuntimeError(
                f"this is process {ordinal()} of {world_size()}, but MASTER_ADDR and MASTER_PORT are not set: start the program "
                "with torchrun, torch_xla.launch or xmp.spawn, or call torch.distributed.init_process_group first"
            )
        else:
            _store, _, _ = next(dist.rendezvous("env://", ordinal(), world_size()))
    return _store


def master_address() -> str:
    """Where rank 0 is."""
    return os.environ.get("MASTER_ADDR", "127.0.0.1")


def forget() -> None:
    """In a forked child, or when a worker ends: the groups are gone."""
    global _store
    _groups.clear()
    _store = None


os.register_at_fork(after_in_child=forget)
atexit.register(forget)  # the threads of gloo's groups would abort the interpreter at its end


def real(t: torch.Tensor) -> torch.Tensor:
    """The tensor that collectives work on: the memory of an xla tensor, or `t` itself."""
    t = t.detach()
    return device.to_real(t) if t.device.type == "xla" else t


def like(result: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """`result` of the real device on the device of `t`."""
    return device.from_real(result) if t.device.type == "xla" else result
