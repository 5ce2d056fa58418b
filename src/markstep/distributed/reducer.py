"""Averages gradients over processes, inside the step: the work behind `DataParallel` and PyTorch's DistributedDataParallel."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from markstep.distributed.collectives import all_reduce_, broadcast_, register, wait_
from markstep.distributed.lockstep import Lockstep

_FIRST_BUCKET_MB = 1.0
_count = 0


@dataclass(eq=False)
class _Bucket:
    """Parameters whose gradients travel together, in one flat tensor that ends with one number for each: has it a gradient?"""

    parameters: list[nn.Parameter]
    ones: Tensor
    ready: set[int] = field(default_factory=set)
    flat: Tensor | None = None
    absent: list[int] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Have all parameters got their gradients?"""
        return len(self.ready) == len(self.parameters)


class Reducer:
    """Averages the gradients of a module over processes at the end of every backward.

    Buckets of gradients are reduced while backward goes on, in the same order everywhere. Parameters and buffers start as those
    of rank 0. All constructors and methods without underscore are called in all processes.

    Args:
        module: the model, of the same structure in all processes.
        process_group: the processes.
        bucket_mb: size of a bucket in MB; the first one is smaller, so that the first reduction starts early.
        broadcast_buffers: before every forward in training, buffers (running statistics, say) become those of rank 0.

    Raises:
        RuntimeError: the models differ; the message names the ranks.
        ValueError: no parameter needs a gradient.
    """

    def __init__(self, module: nn.Module, process_group: Any, bucket_mb: float, *, broadcast_buffers: bool) -> None:
        self._module = module
        self._world_size = dist.get_world_size(process_group)
        self._ranks = dist.get_process_group_ranks(process_group)
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        if not self._parameters:
            raise ValueError("no parameter of the module needs a gradient: there is nothing to reduce")
        self._device = self._parameters[0].device
        self._name = _register(process_group, self._device)
        self._broadcast_buffers = broadcast_buffers
        self._synchronises = self._buffers_due = True
        self._started, self._next = False, 0
        self._control = dist.new_group(self._ranks, backend="gloo")
        self.lockstep = Lockstep(self._control, self._repair)
        self._check_structure()
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._give_to_all([t.detach() for t in (*module.parameters(), *module.buffers())])
        self._buckets = _make_buckets(self._parameters, bucket_mb)
        self._bucket_of = {id(p): b for b in self._buckets for p in b.parameters}
        self._hooks = [p.register_post_accumulate_grad_hook(self._has_gradient) for p in self._parameters]
        self._hooks.append(register_optimizer_step_pre_hook(_Finder(self)))

    def before_forward(self, *, synchronises: bool, training: bool) -> None:
        """A forward with gradients begins: those of its backward are reduced, or kept to be reduced with later ones.

        In evaluation mode nothing is exchanged before backward, so one process alone may do it.
        """
        self._synchronises = synchronises
        if not training:
            return
        self.lockstep.exchange()
        if self._broadcast_buffers and self._buffers_due:
            self._give_to_all(list(self._module.buffers()))
        self._buffers_due = synchronises  # as in DistributedDataParallel: behind a step that was synchronised

    def remove(self) -> None:
        """Leaves the module alone from now on."""
        for hook in self._hooks:
            hook.remove()

    # ------------------------------------------------------------ gradients

    def _has_gradient(self, p: Tensor) -> None:
        """Called by autograd when the gradient of a parameter is complete."""
        if not self._synchronises:
            return
        if not self._started:
            self._started, self._next = True, 0
            for b in self._buckets:
                b.ready.clear()
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
        self._bucket_of[id(p)].ready.add(id(p))
        while self._next < len(self._buckets) and self._buckets[self._next].complete:
            self._start(self._buckets[self._next])

    @torch.no_grad()
    def _start(self, bucket: _Bucket) -> None:
        self._next += 1
        bucket.absent = [i for i, p in enumerate(bucket.parameters) if p.grad is None]
        present = bucket.ones
        if bucket.absent:
            present = present.clone()
            present[bucket.absent] = 0.0
        parts = [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in bucket.parameters]
        bucket.flat = torch.cat([*parts, present]).div_(self._world_size)
        all_reduce_(bucket.flat, "SUM", self._name)

    @torch.no_grad()
    def _end_backward(self) -> None:
        self._started = False
        while self._next < len(self._buckets):
            self._start(self._buckets[self._next])
        for bucket in self._buckets:
            flat, bucket.flat = bucket.flat, None
            assert flat is not None
            wait_(flat)
            sizes = [p.numel() for p in bucket.parameters]
            *parts, present = flat.split([*sizes, len(sizes)])
            used = present.tolist() if bucket.absent else []
            for i, (p, part) in enumerate(zip(bucket.parameters, parts, strict=True)):
                if p.grad is not None:
                    p.grad.copy_(part.view_as(p))
                elif used[i]:
                    p.grad = part.view_as(p).clone()

    # ------------------------------------------------------------ equal processes

    @torch.no_grad()
    def _give_to_all(self, tensors: list[Tensor]) -> None:
        """Every process gets the tensors of rank 0, in place."""
        for same in _by_kind(tensors):
            flat = torch.cat([t.reshape(-1) for t in same])
            broadcast_(flat, 0, self._name)
            wait_(flat)
            for t, part in zip(same, flat.split([t.numel() for t in same]), strict=True):
                t.copy_(part.view(t.shape))

    def _repair(self) -> None:
        """After a step that some processes ran compiled and others not: they may differ by rounding."""
        state = [
            v for o in self._optimizers for p in self._parameters for v in o.state.get(p, {}).values() if isinstance(v, Tensor)
        ]
        self._give_to_all([t for t in (*self._parameters, *state) if t.device == self._device])

    def _check_structure(self) -> None:
        mine = [(name, tuple(p.shape), str(p.dtype), p.requires_grad) for name, p in self._module.named_parameters()]
        everybody: list[Any] = [None] * self._world_size
        dist.all_gather_object(everybody, mine, group=self._control)
        others = [rank for rank, theirs in zip(self._ranks, everybody, strict=True) if theirs != everybody[0]]
        if not others:
            return
        theirs = everybody[self._ranks.index(others[0])]
        first = next((pair for pair in zip(everybody[0], theirs, strict=False) if pair[0] != pair[1]), None)
        detail = f"{first[0]} against {first[1]}" if first else f"{len(everybody[0])} parameters against {len(theirs)}"
        raise RuntimeError(
            f"the model of rank {', '.join(map(str, others))} differs from that of rank {self._ranks[0]}: {detail}. "
            "Build the same model in all processes"
        )


class _Finder:
    """Notes which optimizers train the module, without keeping it alive."""

    def __init__(self, owner: Reducer) -> None:
        self._owner = weakref.ref(owner)

    def __call__(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        owner = self._owner()
        if owner is None or optimizer in owner._optimizers:
            return
        if any(id(p) in owner._bucket_of for group in optimizer.param_groups for p in group["params"]):
            owner._optimizers.add(optimizer)


def _register(group: Any, device: torch.device) -> str:
    global _count
    _count += 1  # the constructor runs in all processes of the group
    return register(f"{','.join(map(str, dist.get_process_group_ranks(group)))}/{_count}", group._get_backend(device))


def _by_kind(tensors: list[Tensor]) -> list[list[Tensor]]:
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for t in tensors:
        kinds.setdefault((t.dtype, t.device), []).append(t)
    return list(kinds.values())


def _make_buckets(parameters: list[nn.Parameter], bucket_mb: float) -> list[_Bucket]:
    """In the order in which backward is likely to finish: last parameters first."""
    buckets: list[_Bucket] = []
    for same in _by_kind(list(reversed(parameters))):
        room = _FIRST_BUCKET_MB * 2**20
        chosen: list[Tensor] = []
        for p in same:
            if chosen and room < p.nbytes:
                buckets.append(_bucket(chosen))
                room, chosen = bucket_mb * 2**20, []
            chosen.append(p)
            room -= p.nbytes
        buckets.append(_bucket(chosen))
    return buckets


def _bucket(parameters: list[Any]) -> _Bucket:
    return _Bucket(parameters, torch.ones(len(parameters), dtype=parameters[0].dtype, device=parameters[0].device))
