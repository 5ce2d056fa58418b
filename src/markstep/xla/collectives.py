"""Collective operations between processes, on the memory of xla tensors.

A collective is outside of compiled programs: what its inputs depend on is computed first.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from markstep.xla import env, processes, steps
from markstep.xla.processes import like, members, real
from markstep.xla.structures import to_cpu

REDUCE_SUM = "sum"
REDUCE_MUL = "mul"
REDUCE_AND = "and"
REDUCE_OR = "or"
REDUCE_MIN = "min"
REDUCE_MAX = "max"

Groups = Sequence[Sequence[int]] | None


def _reduce_op(kind: str, dtype: torch.dtype) -> Any:
    ops = {"sum": "SUM", "mul": "PRODUCT", "and": "BAND", "or": "BOR", "min": "MIN", "max": "MAX"}
    if kind not in ops:
        raise ValueError(f"reduce_type={kind!r} is not known: use one of {', '.join(map(repr, ops))}")
    if dtype is torch.bool:  # reduced as bytes
        return dist.ReduceOp.MIN if kind in ("and", "mul", "min") else dist.ReduceOp.MAX
    return getattr(dist.ReduceOp, ops[kind])


def _world_is_one(ranks: tuple[int, ...]) -> bool:
    return len(ranks) == 1 and not env.flag("XLA_ALWAYS_ALLREDUCE")


def _sum_up(flat: torch.Tensor, kind: str, scale: float, ranks: tuple[int, ...]) -> None:
    """Reduces a contiguous tensor of the real device over processes, in place."""
    if len(ranks) > 1:
        options = dist.AllreduceOptions()
        options.reduceOp = _reduce_op(kind, flat.dtype)
        processes.group(ranks).allreduce([flat.view(torch.uint8) if flat.dtype is torch.bool else flat], options).wait()
    if scale != 1.0:
        flat.copy_(flat * scale)


def _by_dtype(tensors: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    found: dict[torch.dtype, list[torch.Tensor]] = {}
    for t in tensors:
        found.setdefault(t.dtype, []).append(t)
    return list(found.values())


@torch.no_grad()
def all_reduce(reduce_type: str, inputs: Any, scale: float = 1.0, groups: Groups = None, pin_layout: bool = True) -> Any:
    """Reduces tensors over processes.

    Args:
        reduce_type: "sum", "mul", "and", "or", "min" or "max".
        inputs: a tensor, which gives a new tensor; or a list, whose tensors are changed in place.
        scale: factor of the result.
        groups: lists of ordinals that reduce among each other; by default all.
        pin_layout: has no effect.

    Returns:
        The new tensor, or the list itself.

    Raises:
        ValueError: an unknown `reduce_type`, or `groups` without this process.
    """
    ranks = members(groups)
    _reduce_op(reduce_type, torch.float32)
    if isinstance(inputs, torch.Tensor):
        result = real(inputs).clone(memory_format=torch.contiguous_format)
        if len(ranks) > 1 or scale != 1.0:
            _sum_up(result, reduce_type, scale, ranks)
        return like(result, inputs)
    if not _world_is_one(ranks) or scale != 1.0:
        for same in _by_dtype([real(t) for t in inputs]):
            if len(same) == 1 and same[0].is_contiguous():
                _sum_up(same[0], reduce_type, scale, ranks)
                continue
            flat = torch.cat([t.reshape(-1) for t in same])
            _sum_up(flat, reduce_type, scale, ranks)
            for t, part in zip(same, flat.split([t.numel() for t in same]), strict=True):
                t.copy_(part.view(t.shape))
    return inputs


def _as_bytes(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().reshape(-1).view(torch.uint8)


def _gather_parts(value: torch.Tensor, ranks: tuple[int, ...]) -> list[torch.Tensor]:
    """The values of all processes of a group, which have the same shape, in the group's order."""
    if len(ranks) == 1:
        return [value.clone()]
    sent = _as_bytes(value)
    received = [torch.empty_like(sent) for _ in ranks]
    processes.group(ranks).allgather([received], [sent]).wait()
    return [part.view(value.dtype).view(value.shape) for part in received]


@torch.no_grad()
def all_gather(
    value: Any,
    dim: int = 0,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Any:
    """The values of all processes, joined along `dim` in the order of their ordinals.

    Args:
        value: a tensor, or a list of tensors; shapes are the same everywhere.
        dim: along which to join.
        groups: lists of ordinals that gather among each other; by default all.
        output: tensor(s) to write to, which are returned then.
        pin_layout: has no effect, like `channel_id` and `use_global_device_ids`.
        channel_id: has no effect.
        use_global_device_ids: has no effect.

    Returns:
        A tensor, or a list of tensors if `value` is a list.
    """
    ranks = members(groups)
    if not isinstance(value, torch.Tensor):
        outputs = output if output is not None else [None] * len(value)
        results = [all_gather(v, dim, groups, o) for v, o in zip(value, outputs, strict=True)]
        return output if output is not None else results
    source = real(value)
    joined = torch.cat(_gather_parts(source.reshape(1) if source.dim() == 0 else source, ranks), dim=dim)
    return _deliver(joined, value, output)


def _deliver(result: torch.Tensor, value: torch.Tensor, output: torch.Tensor | None) -> torch.Tensor:
    if output is None:
        return like(result, value)
    real(output).copy_(result.view(output.shape) if output.shape.numel() == result.numel() else result)
    return output


def buckets(tensors: Iterable[torch.Tensor], megabytes: int) -> list[list[torch.Tensor]]:
    """Consecutive tensors of at most so many megabytes together (0: one bucket)."""
    found: list[list[torch.Tensor]] = []
    size = 0
    for t in tensors:
        nbytes = t.numel() * t.element_size()
        if not found or (megabytes and size + nbytes > megabytes * 2**20):
            found.append([])
            size = 0
        found[-1].append(t)
        size += nbytes
    return found


def all_gather_bucketized(
    input_list: list[torch.Tensor],
    dim: int = 0,
    groups: Groups = None,
    output: list[torch.Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> Any:
    """`all_gather` of a list; the size of buckets has no effect."""
    return all_gather(input_list, dim, groups, output)


@torch.no_grad()
def reduce_scatter(
    reduce_type: str,
    input: Any,  # noqa: A002
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Any:
    """Reduces tensors over processes; each process gets its part of the result.

    Args:
        reduce_type: see `all_reduce`.
        input: a tensor, or a list of tensors.
        scale: factor of the result.
        scatter_dim: along which the result is cut.
        shard_count: number of parts: processes in a group.
        groups: lists of ordinals that reduce among each other; by default all.
        output: tensor(s) to write to, which are returned then.
        pin_layout: has no effect, like `channel_id` and `use_global_device_ids`.
        channel_id: has no effect.
        use_global_device_ids: has no effect.

    Raises:
        ValueError: the dimension cannot be cut into `shard_count` equal parts, or that is not the size of the group.
    """
    ranks = members(groups)
    if shard_count != len(ranks):
        raise ValueError(f"shard_count={shard_count}, but the group has {len(ranks)} processes: they must be equal")
    if not isinstance(input, torch.Tensor):
        outputs = output if output is not None else [None] * len(input)
        results = [
            reduce_scatter(reduce_type, t, scale, scatter_dim, shard_count, groups, o)
            for t, o in zip(input, outputs, strict=True)
        ]
        return output if output is not None else results
    if input.shape[scatter_dim] % shard_count:
        raise ValueError(f"dimension {scatter_dim} of {tuple(input.shape)} does not divide by shard_count={shard_count}")
    whole = real(input).clone(memory_format=torch.contiguous_format)
    _sum_up(whole, reduce_type, scale, ranks)
    part = whole.chunk(shard_count, scatter_dim)[ranks.index(processes.ordinal())].clone(memory_format=torch.contiguous_format)
    return _deliver(part, input, output)


def reduce_scatter_bucketized(
    reduce_type: str,
    input_list: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> Any:
    """`reduce_scatter` of a list; the size of buckets has no effect."""
    return reduce_scatter(reduce_type, input_list, scale, scatter_dim, shard_count, groups, output)


def _exchange(sent: list[torch.Tensor], sizes: list[int], ranks: tuple[int, ...]) -> list[torch.Tensor]:
    """Sends bytes to every process of a group and returns what each sent here, `sizes[i]` bytes from the i-th."""
    flat = torch.cat(sent)
    received = flat.new_empty(sum(sizes))
    processes.group(ranks).alltoall_base(received, flat, sizes, [s.numel() for s in sent], dist.AllToAllOptions()).wait()
    return list(received.split(sizes))


@torch.no_grad()
def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Groups = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Cuts `value` into `split_count` parts, sends the i-th to the i-th process, and joins what arrives.

    Args:
        value: the same shape everywhere.
        split_dimension: along which to cut.
        concat_dimension: along which to join.
        split_count: number of processes in a group.
        groups: lists of ordinals that exchange among each other; by default all.
        pin_layout: has no effect.

    Raises:
        ValueError: `split_count` is not the size of the group.
    """
    ranks = members(groups)
    if split_count != len(ranks):
        raise ValueError(f"split_count={split_count}, but the group has {len(ranks)} processes: they must be equal")
    parts = real(value).chunk(split_count, split_dimension)
    if len(ranks) > 1:
        sent = [_as_bytes(p) for p in parts]
        arrived = _exchange(sent, [s.numel() for s in sent], ranks)
        parts = tuple(a.clone().view(value.dtype).view(p.shape) for a, p in zip(arrived, parts, strict=True))
    return like(torch.cat(parts, concat_dimension), value)


@torch.no_grad()
def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """Sends `value` along (source, target) pairs of ordinals; a process that is no target gets zeros.

    Raises:
        ValueError: an ordinal is source or target twice.
    """
    sources, targets = [int(s) for s, _ in pairs], [int(t) for _, t in pairs]
    if len(set(sources)) < len(sources) or len(set(targets)) < len(targets):
        raise ValueError(f"pairs={list(map(list, pairs))}: an ordinal may be source once and target once")
    ranks, rank = members(None), processes.ordinal()
    source = _as_bytes(real(value))
    goal = dict(zip(sources, targets, strict=True)).get(rank)
    origin = dict(zip(targets, sources, strict=True)).get(rank)
    if len(ranks) == 1:
        return like(real(value).clone() if origin == 0 else torch.zeros_like(real(value)), value)
    sizes = [source.numel() if r == origin else 0 for r in ranks]
    arrived = _exchange([source if r == goal else source[:0] for r in ranks], sizes, ranks)
    if origin is None:
        return like(torch.zeros_like(real(value)), value)
    return like(arrived[origin].clone().view(value.dtype).view(value.shape), value)


@torch.no_grad()
def collective_broadcast(
    tensors: list[torch.Tensor], root_ordinal: int = 0, groups: Groups = None, pin_layout: bool = True
) -> None:
    """Gives every process the values of the process `root_ordinal`, in place."""
    ranks = tuple(int(r) for r in groups) if groups and isinstance(groups[0], int) else members(groups)  # type: ignore[call-overload]
    if len(ranks) == 1:
        return
    if root_ordinal not in ranks:
        raise ValueError(f"root_ordinal={root_ordinal} is not in the group {list(ranks)}")
    options = dist.BroadcastOptions()
    options.rootRank = ranks.index(root_ordinal)
    options.rootTensor = 0
    for same in _by_dtype([real(t) for t in tensors]):
        flat = torch.cat([t.reshape(-1) for t in same])
        processes.group(ranks).broadcast([_as_bytes(flat)], options).wait()
        for t, part in zip(same, flat.split([t.numel() for t in same]), strict=True):
            t.copy_(part.view(t.shape))


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Gives all processes the parameters and buffers of process 0, and ends the step."""
    collective_broadcast([*(p.data for p in model.parameters()), *(b.data for b in model.buffers())])
    steps.end_step("user torch_xla.sync")


def gather_bytes(payload: bytes, ranks: tuple[int, ...]) -> list[bytes]:
    """The payloads of all processes of a group, which may differ in length."""
    if len(ranks) == 1:
        return [payload]
    on = processes.device.real_device()
    sizes = [int(t) for t in _gather_parts(torch.tensor([len(payload)], device=on), ranks)]
    padded = torch.zeros(max(*sizes, 1), dtype=torch.uint8)
    if payload:
        padded[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    parts = _gather_parts(padded.to(on), ranks)
    return [bytes(p.cpu()[:n].numpy()) for p, n in zip(parts, sizes, strict=True)]


def xla_rendezvous(payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None) -> list[bytes]:
    """Waits until all processes are here; ends the step.

    Args:
        payload: what to tell the others.
        ordinals: who takes part; by default all.
        tag: has no effect.

    Returns:
        The payloads of all, by ordinal.

    Raises:
        TypeError: the payload is not bytes.
    """
    if not isinstance(payload, bytes):
        raise TypeError(f"payload must be bytes, not {type(payload).__name__}: encode it, or use mesh_reduce for other data")
    steps.end_step("user torch_xla.sync")
    return gather_bytes(payload, members([list(ordinals)] if ordinals else None))


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """See `xla_rendezvous`; `replicas` are the ordinals that take part, by default all."""
    return xla_rendezvous(payload, replicas or None, tag)


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[..., Any]) -> Any:
    """`reduce_fn` of the list of all processes' `data`, which may be any nested structure; tensors arrive on the CPU."""
    written = io.BytesIO()
    torch.save(to_cpu(data), written)
    arrived = xla_rendezvous(written.getvalue(), tag=tag)
    return reduce_fn([torch.load(io.BytesIO(a), weights_only=False) for a in arrived])
