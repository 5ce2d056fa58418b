"""The backend "smddp" of torch.distributed: gloo for CPU tensors, nccl for CUDA tensors.

Importing this registers it, so that `torch.distributed.init_process_group(backend="smddp")` works.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["new_process_group", "register"]

_NAME = "smddp"


def register() -> None:
    """Registers the backend; a second call does nothing."""
    if not hasattr(dist.Backend, _NAME.upper()):
        dist.Backend.register_backend(_NAME, new_process_group, extended_api=True, devices=["cpu", "cuda"])


def new_process_group(options: Any, backend_options: Any = None) -> dist.ProcessGroup:
    """Makes an ordinary process group, which torch.distributed then uses under the name "smddp".

    The groups that do the work are torch's own, so all that works with gloo and nccl works with it.

    Args:
        options: what torch.distributed gives an extended backend: store, rank, size, timeout, name and ranks of the group.
        backend_options: the `pg_options` of `init_process_group`; `ProcessGroupNCCL.Options` are used for CUDA.
    """
    rank, size = options.group_rank, options.group_size
    group = dist.ProcessGroup(options.store, rank, size)
    gloo: Any = dist.ProcessGroupGloo(dist.PrefixStore("cpu/", options.store), rank, size, options.timeout)
    gloo.options.global_ranks_in_group = options.global_ranks_in_group
    gloo.options.group_name = options.group_id
    gloo._set_sequence_number_for_group()
    kind = dist.ProcessGroup.BackendType
    has_cuda = torch.cuda.is_available() and dist.is_nccl_available()
    group._set_default_backend(kind.NCCL if has_cuda else kind.GLOO)
    group._register_backend(torch.device("cpu"), kind.GLOO, gloo)
    if has_cuda:
        group._register_backend(torch.device("cuda"), kind.NCCL, _nccl(options, backend_options))
    return group


def _nccl(options: Any, given: Any) -> Any:
    chosen = given if isinstance(given, dist.ProcessGroupNCCL.Options) else dist.ProcessGroupNCCL.Options()
    chosen._timeout = options.timeout
    chosen.global_ranks_in_group = options.global_ranks_in_group
    chosen.group_name = options.group_id
    nccl: Any = dist.ProcessGroupNCCL(dist.PrefixStore("cuda/", options.store), options.group_rank, options.group_size, chosen)
    nccl._set_sequence_number_for_group()
    return nccl


def init_alone_or_launched(timeout: timedelta | None = None) -> None:
    """`init_process_group("smddp")`; in a process that nothing launched, a group of this one process."""
    if "RANK" in os.environ:
        dist.init_process_group(_NAME, timeout=timeout)
    else:
        dist.init_process_group(_NAME, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)


register()
