"""Saving with one file for each tensor, so that a process never holds all of a model on the CPU."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from markstep.xla import model
from markstep.xla.structures import ToXlaTensorArena, for_each_instance_rewrite, is_xla_tensor, to_cpu


class TensorReference:
    """Stands for a tensor in the main file; the tensor is in a file of its own.

    Attributes:
        tid: number of the tensor.
    """

    def __init__(self, tid: int) -> None:
        self.tid = tid


def _tensor_file(path: str | Path, tid: int) -> Path:
    return Path(f"{path}.tensors") / f"tensor_{tid}.pt"


def save(data: Any, path: str | Path, master_only: bool = True, global_master: bool = False) -> None:
    """Saves nested data to `path`, and its xla tensors to files in the folder `path` + ".tensors".

    Args:
        data: any nested structure.
        path: a file; what is there is replaced.
        master_only: see `torch_xla.core.xla_model.save`, like the next.
        global_master: see there.
    """
    writes = not master_only or model.is_master_ordinal(local=not global_master)
    if not writes:
        to_cpu(data, convert=False)
        return
    folder = Path(f"{path}.tensors")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)

    def write(tensors: list[torch.Tensor]) -> list[Any]:
        for tid, t in enumerate(tensors):
            torch.save(to_cpu(t), _tensor_file(path, tid))
        return [TensorReference(tid) for tid in range(len(tensors))]

    torch.save(ToXlaTensorArena(write, is_xla_tensor).transform(data), path)


def load(path: str | Path) -> Any:
    """What `save` has saved, with tensors on the CPU. Only for files you trust: unpickling can run code."""
    loaded: dict[int, torch.Tensor] = {}

    def read(reference: TensorReference) -> torch.Tensor:
        if reference.tid not in loaded:
            loaded[reference.tid] = torch.load(_tensor_file(path, reference.tid), weights_only=False)
        return loaded[reference.tid]

    return for_each_instance_rewrite(torch.load(path, weights_only=False), lambda v: isinstance(v, TensorReference), read)
