"""Collectives that a program can hold: they start where they stand in the step and are waited for where their result is used.

`all_reduce_` and `broadcast_` only start; `wait_` on the same tensor ends them. Between the two nobody may use the tensor.
What runs is the same in all ways of running a step: eagerly, call by call, or between two compiled pieces.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from markstep.distributed import watch

_library = torch.library.Library("markstep", "FRAGMENT")
_library.define("all_reduce_(Tensor(a!) tensor, str op, str group) -> ()")
_library.define("broadcast_(Tensor(a!) tensor, int source, str group) -> ()")
_library.define("wait_(Tensor(a!) tensor) -> ()")

_groups: dict[str, Any] = {}
_pending: dict[int, tuple[Any, Tensor, str, int]] = {}
_address = torch._C.TensorBase.data_ptr  # Tensor's own is wrapped by the engine


def register(name: str, group: Any) -> str:
    """Makes a process group known to the operators as `name`; returns the name.

    Args:
        name: the same in all processes of the group.
        group: a backend (`ProcessGroup._get_backend`), whose calls do not pass through PyTorch's dispatcher.
    """
    _groups[name] = group
    watch.current()
    return name


def _group(name: str) -> Any:
    if name not in _groups:
        raise RuntimeError(f"the process group {name!r} of this step is gone: it was destroyed, or the step is another process's")
    return _groups[name]


def _start(tensor: Tensor, work: Any, what: str) -> None:
    what = f"{what} of {tensor.numel():,} {str(tensor.dtype).removeprefix('torch.')}"
    _pending[_address(tensor)] = (work, tensor, what, watch.current().started())


def _all_reduce(tensor: Tensor, op: str, group: str) -> None:
    options = dist.AllreduceOptions()
    options.reduceOp = getattr(dist.ReduceOp, op)
    _start(tensor, _group(group).allreduce([tensor], options), f"all_reduce {op}")


def _broadcast(tensor: Tensor, source: int, group: str) -> None:
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = source, 0
    _start(tensor, _group(group).broadcast([tensor], options), f"broadcast from rank {source} of the group")


def _wait(tensor: Tensor) -> None:
    started = _pending.pop(_address(tensor), None)
    if started is not None:
        work, _, what, number = started
        watch.current().wait(work, what, number)


for _name, _kernel in {"all_reduce_": _all_reduce, "broadcast_": _broadcast, "wait_": _wait}.items():
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")

all_reduce_ = torch.ops.markstep.all_reduce_.default
"""all_reduce_(tensor, op, group): starts to reduce a contiguous tensor in place; op is "SUM", "MAX", ... of `ReduceOp`."""
broadcast_ = torch.ops.markstep.broadcast_.default
"""broadcast_(tensor, source, group): starts to give the tensor of the group's rank `source` to all."""
wait_ = torch.ops.markstep.wait_.default
"""wait_(tensor): returns when what was started on the tensor has ended."""
