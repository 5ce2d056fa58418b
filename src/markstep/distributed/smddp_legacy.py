"""The API that SMDDP had before 1.4, on torch.distributed; it prints the library's deprecation notice once."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp as _TorchOp

from markstep.distributed import smddp

__all__ = [
    "DistributedDataParallel",
    "ReduceOp",
    "all_gather",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "get_local_rank",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_available",
    "is_initialized",
    "new_group",
    "reduce",
]

NOTICE = (
    "smdistributed.dataparallel.torch.dist is deprecated in the SageMaker distributed data parallel library v1.4.0+. "
    "Please use torch.distributed and specify 'smddp' as a backend when initializing process groups "
    "(`torch.distributed.init_process_group(backend='smddp')`)."
)
_told = False


def tell() -> None:
    """Prints the notice, once, in the first process of each machine."""
    global _told
    if not _told and os.environ.get("LOCAL_RANK", "0") == "0":
        print(NOTICE, file=sys.stderr, flush=True)
    _told = True


class ReduceOp:
    """The reductions of `all_reduce` and `reduce`. AVERAGE divides the sum by the number of processes."""

    SUM = _TorchOp.SUM
    AVERAGE = _TorchOp.AVG
    AVG = _TorchOp.AVG
    PRODUCT = _TorchOp.PRODUCT
    MIN = _TorchOp.MIN
    MAX = _TorchOp.MAX


def is_available() -> bool:
    """Whether it can be used: always."""
    return dist.is_available()


def init_process_group(*args: Any, **kwargs: Any) -> None:
    """Makes the default group with the backend smddp. The arguments of `torch.distributed.init_process_group` do nothing."""
    tell()
    if not dist.is_initialized():
        smddp.init_alone_or_launched(kwargs.get("timeout"))


def is_initialized() -> bool:
    """Whether `init_process_group` was called."""
    return dist.is_initialized()


def get_world_size(group: Any = None) -> int:
    """Number of processes."""
    _begin()
    return dist.get_world_size(group)


def get_rank(group: Any = None) -> int:
    """Rank of this process among all."""
    _begin()
    return dist.get_rank(group)


def get_local_rank() -> int:
    """Rank of this process among those of its machine."""
    _begin()
    return int(os.environ.get("LOCAL_RANK", "0"))


def new_group(*args: Any, **kwargs: Any) -> Any:
    """A group of some of the processes; SMDDP had none, this is torch's."""
    _begin()
    return dist.new_group(*args, **kwargs)


def all_reduce(tensor: torch.Tensor, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
    """Reduces a tensor in all processes, in place."""
    _begin()
    return _averaging(tensor, op, group, async_op, lambda: dist.all_reduce(tensor, _sum_of(op, tensor), group, async_op))


def reduce(tensor: torch.Tensor, dst: int = 0, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
    """Reduces a tensor to process `dst`."""
    _begin()

    def start() -> Any:
        return dist.reduce(tensor, dst, _sum_of(op, tensor), group, async_op)

    return _averaging(tensor, op, group, async_op, start, dist.get_rank() == dst)


def broadcast(tensor: torch.Tensor, src: int = 0, group: Any = None, async_op: bool = False) -> Any:
    """Sends a tensor of process `src` to all."""
    _begin()
    return dist.broadcast(tensor, src, group, async_op)


def all_gather(tensor_list: list[torch.Tensor], tensor: torch.Tensor, group: Any = None, async_op: bool = False) -> Any:
    """Gathers a tensor of each process in all."""
    _begin()
    return dist.all_gather(tensor_list, tensor, group, async_op)


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Sends each process a part of a tensor."""
    _begin()
    return dist.all_to_all_single(output, input, output_split_sizes, input_split_sizes, group, async_op)


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
    """Waits for all processes."""
    _begin()
    return dist.barrier(group, async_op)


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """torch's DistributedDataParallel with the arguments of SMDDP's, which makes the default group if there is none.

    Args:
        module: the model, on its device.
        device_ids: the GPU of this process; not for a model on the CPU.
        output_device: as `device_ids`.
        broadcast_buffers: send the buffers of rank 0 to all in each forward; SMDDP's default is not to.
        process_group: of the gradients; all processes by default.
        bucket_cap_mb: gradients are reduced in pieces of this size.
        **kwargs: other arguments of torch's class.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        broadcast_buffers: bool = False,
        process_group: Any = None,
        bucket_cap_mb: float = 25,
        **kwargs: Any,
    ) -> None:
        init_process_group()
        super().__init__(
            module,
            device_ids=device_ids,
            output_device=output_device,
            broadcast_buffers=broadcast_buffers,
            process_group=process_group,
            bucket_cap_mb=bucket_cap_mb,
            **kwargs,
        )


def _begin() -> None:
    tell()
    if not dist.is_initialized():
        raise RuntimeError(
            "the process group is not initialised: call smdistributed.dataparallel.torch.distributed.init_process_group(), or "
            "torch.distributed.init_process_group(backend='smddp'), first"
        )


def _sum_of(op: Any, tensor: torch.Tensor) -> Any:
    return _TorchOp.SUM if op == _TorchOp.AVG and tensor.device.type == "cpu" else op


def _averaging(tensor: torch.Tensor, op: Any, group: Any, async_op: bool, start: Any, here: bool = True) -> Any:
    """Starts a reduction; gloo has no average, so the sum is divided afterwards."""
    work = start()
    if op != _TorchOp.AVG or tensor.device.type != "cpu" or not here:
        return work
    if work is None or not async_op:
        tensor.div_(dist.get_world_size(group))
        return work
    return _Divided(work, tensor, dist.get_world_size(group))


class _Divided:
    def __init__(self, work: Any, tensor: torch.Tensor, size: int) -> None:
        self._work, self._tensor, self._size = work, tensor, size
        self._done = False

    def wait(self, *args: Any) -> bool:
        finished = bool(self._work.wait(*args))
        if not self._done:
            self._done = True
            self._tensor.div_(self._size)
        return finished

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())
