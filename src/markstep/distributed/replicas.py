"""Finds processes that train alone: their parameters are the same in number and shape, but no longer in value.

After the steps 1, 2, 4, 8 and 16 of an optimizer and then after every 100th, each process leaves a hash of some of its
parameters' elements in the store and looks for those of the others. Nobody waits for anybody.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore
from torch.optim.optimizer import register_optimizer_step_post_hook

from markstep.engine import agreement, threads

_ELEMENTS, _TENSORS, _EVERY = 32, 64, 100
_steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_count = itertools.count()  # in the order of their first steps, which is the same in all processes
_open: list[str] = []


class ReplicasDifferError(RuntimeError):
    """Processes that should train one model train several; the message names the ranks."""


def install() -> None:
    """Watches all optimizers of processes that train together; MARKSTEP_LOCKSTEP=0 switches it off."""
    if os.environ.get("MARKSTEP_LOCKSTEP", "1") != "0":
        register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not dist.is_initialized() or dist.get_world_size() < 2:
        return
    step = _steps[optimizer] = _steps.get(optimizer, 0) + 1
    if step == 1:
        _numbers[optimizer] = next(_count)
    if (step > 16 or step & (step - 1)) and step % _EVERY:
        return
    number = _numbers[optimizer]
    if threads.active() is None:
        _compare(optimizer, number, step)
    else:  # its values are not there yet
        reference = weakref.ref(optimizer)
        agreement.before_next_step(lambda: _compare(reference(), number, step))


def _compare(optimizer: Any, number: int, step: int) -> None:
    if optimizer is None or not dist.is_initialized():
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not all(_is_whole(p) for p in parameters):
        return  # shards, or a device whose scripts synchronise in their own way
    store = PrefixStore("markstep/replicas", dist.distributed_c10d._get_default_store())
    rank, world = dist.get_rank(), dist.get_world_size()
    key = f"{number}/{step}"
    store.set(f"{key}/{rank}", json.dumps(_fingerprint(parameters)))
    _open.append(key)
    for waiting in list(_open):
        if not store.check([f"{waiting}/{r}" for r in range(world)]):
            continue
        _open.remove(waiting)
        found = [json.loads(store.get(f"{waiting}/{r}")) for r in range(world)]
        if len({shapes for shapes, _ in found}) > 1 or len({values for _, values in found}) == 1:
            continue  # not replicas of one model, or equal ones
        differ = [r for r, (_, values) in enumerate(found) if values != found[0][1]]
        raise ReplicasDifferError(
            f"after step {waiting.split('/')[1]} of optimizer {waiting.split('/')[0]} the parameters of rank "
            f"{', '.join(map(str, differ))} differ from those of rank 0: gradients are not averaged, or the models started "
            "different. Wrap the model in DistributedDataParallel or markstep.distributed.DataParallel (on the xla device: "
            "xm.optimizer_step in place of optimizer.step). If every process is meant to train a model of its own, set "
            "MARKSTEP_LOCKSTEP=0"
        )
    del _open[:-8]


def _is_whole(p: Any) -> bool:
    sharded = any(getattr(p, name, False) for name in ("_is_flat_param", "_fsdp_flattened"))
    return type(p) in (torch.nn.Parameter, torch.Tensor) and p.device.type in ("cpu", "cuda") and not sharded


@torch.no_grad()
def _fingerprint(parameters: list[Any]) -> tuple[str, str]:
    shapes = hashlib.sha256(str([(tuple(p.shape), str(p.dtype)) for p in parameters]).encode()).hexdigest()[:16]
    chosen = parameters[:: max(1, len(parameters) // _TENSORS)]
    values = hashlib.sha256()
    for p in chosen:
        flat = p.detach().reshape(-1)
        values.update(flat[:: max(1, flat.numel() // _ELEMENTS)].double().cpu().numpy().tobytes())
    return shapes, values.hexdigest()[:16]
