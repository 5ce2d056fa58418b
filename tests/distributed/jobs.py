"""Runs a function in several processes that train together, for at most a given time."""

from __future__ import annotations

import os
import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _worker(rank: int, fn: Callable[..., Any], world: int, folder: str, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    result = fn(rank, *args)
    Path(folder, f"result{rank}").write_bytes(pickle.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def run(fn: Callable[..., Any], world: int, *args: Any, limit_s: float = 120) -> list[Any]:
    """What `fn(rank, *args)` returned in each of `world` processes.

    Raises:
        TimeoutError: not all of them have ended after `limit_s` seconds; all are killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = mp.start_processes(_worker, args=(fn, world, folder, args), nprocs=world, join=False, start_method="spawn")
        end = time.monotonic() + limit_s
        while not context.join(timeout=1):
            if time.monotonic() > end:
                for process in context.processes:
                    process.kill()
                raise TimeoutError(f"the processes have not ended after {limit_s} s")
        return [pickle.loads(Path(folder, f"result{rank}").read_bytes()) for rank in range(world)]
