"""PyTorch's DistributedDataParallel, with its reductions inside the step.

Its own reducer reads and writes memory without the dispatcher, so nothing of it could be recorded. A module that is wrapped
after Markstep was imported gets a `Reducer` in its place, which averages the same gradients at the same moments. Where that
does not fit (a communication hook, `Join`, mixed precision of its own), it works as always, and its steps run eagerly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from markstep.distributed.reducer import Reducer
from markstep.engine.options import enabled
from markstep.engine.region import leave_alone

_KEY = "_markstep_reducer"
_BACKENDS = ("gloo", "nccl", "smddp", "cpu:gloo,cuda:nccl")


def install() -> None:
    """Wraps the class once; a second call does nothing."""
    if hasattr(DistributedDataParallel.__init__, "_markstep_original"):
        return
    for name, wrap in {
        "__init__": _attaching,
        "forward": _announcing,
        "register_comm_hook": _detaching,
        "join_hook": _detaching,
    }.items():
        original = getattr(DistributedDataParallel, name)
        wrapped = functools.wraps(original)(wrap(original))
        wrapped._markstep_original = original  # type: ignore[attr-defined]
        setattr(DistributedDataParallel, name, wrapped)


def _attaching(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        if enabled() and _fits(self):
            bucket_mb = self.bucket_bytes_cap / 2**20
            self.__dict__[_KEY] = Reducer(self.module, self.process_group, bucket_mb, broadcast_buffers=self.broadcast_buffers)

    return __init__


def _fits(ddp: Any) -> bool:
    parameters = [p for p in ddp.module.parameters() if p.requires_grad]
    plain = all(type(p) is torch.nn.Parameter and p.device.type in ("cpu", "cuda") for p in parameters)
    return (
        plain
        and len({p.device for p in parameters}) == 1
        and torch.distributed.get_backend(ddp.process_group) in _BACKENDS
        and ddp.mixed_precision is None
        and not ddp.parameters_to_ignore
        and not getattr(ddp, "_delay_all_reduce_all_params", False)
        and not getattr(ddp, "_delay_all_reduce_params", ())
    )


def _announcing(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        reducer: Reducer | None = self.__dict__.get(_KEY)
        if reducer is None:
            if self.device_type in ("cpu", "cuda"):
                leave_alone(
                    "a DistributedDataParallel module reduces gradients in a way that cannot be recorded; wrap the module after "
                    "`import markstep`, without communication hooks and Join, or use markstep.distributed.DataParallel"
                )
            return original(self, *inputs, **kwargs)
        synchronises = self.require_backward_grad_sync
        if torch.is_grad_enabled():
            reducer.before_forward(synchronises=synchronises, training=self.training)
        self.require_backward_grad_sync = self.require_forward_param_sync = False
        try:
            return original(self, *inputs, **kwargs)
        finally:
            self.require_backward_grad_sync = synchronises

    return forward


def _detaching(original: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        reducer: Reducer | None = self.__dict__.pop(_KEY, None)
        if reducer is not None:
            reducer.remove()
            self.require_forward_param_sync = True
        return original(self, *args, **kwargs)

    return wrapper
