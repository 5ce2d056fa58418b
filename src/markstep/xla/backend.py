"""The backend "xla" of torch.distributed: gloo or nccl on the memory of xla tensors.

Importing this registers the backend and the init method "xla://".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from markstep.xla import processes


def _on_real(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return processes.real(value)
    if isinstance(value, list | tuple):
        return [_on_real(v) for v in value]
    return value


def _flat(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [t for v in value for t in _flat(v)]


class ProcessGroupXla(dist.ProcessGroup):
    """A process group for xla tensors. Each collective has finished when its call returns.

    Args:
        store: where the processes meet.
        rank: of this process in the group.
        size: of the group.
        timeout: of each collective.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._store_of_group, self._wait = store, timeout
        self._real: Any = None
        self._mesh: list[list[int]] = []
        self._name = ""

    def real(self) -> Any:
        """The gloo or nccl group that does the work."""
        if self._real is None:
            self._real = processes.make_group(self._store_of_group, self.rank(), self.size(), self._wait)
        return self._real

    def getBackendName(self) -> str:  # noqa: N802
        """Its name, "xla"."""
        return "xla"

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """The name that torch.distributed gave it."""
        return self._name

    def _run(self, operation: str, *args: Any) -> Any:
        with torch.no_grad():
            getattr(self.real(), operation)(*map(_on_real, args)).wait()
        done: Any = torch.futures.Future()
        done.set_result(_flat(args[0]))
        return torch._C._distributed_c10d._create_work_from_future(done)  # type: ignore[attr-defined]

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        """Reduces tensors in place."""
        return self._run("allreduce", tensors, opts or dist.AllreduceOptions())

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """Gathers tensors into lists."""
        return self._run("allgather", output_tensors, input_tensors)

    def allgather_coalesced(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """Gathers several tensors, each into a list."""
        work = None
        for outputs, tensor in zip(output_tensors, input_tensors, strict=True):
            work = self._run("allgather", [outputs], [tensor])
        return work

    def _allgather_base(self, output: Any, input: Any, opts: Any = None) -> Any:  # noqa: A002
        return self._run("_allgather_base", output, input)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Gathers several tensors, each into one."""
        work = None
        for output, tensor in zip(outputs, inputs, strict=True):
            work = self._allgather_base(output, tensor)
        return work

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        """Sends tensors of one process to all."""
        return self._run("broadcast", tensors, opts or dist.BroadcastOptions())

    def reduce(self, tensors: Any, opts: Any) -> Any:  # type: ignore[override]
        """Reduces tensors to one process."""
        return self._run("reduce", tensors, opts)

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any) -> Any:  # type: ignore[override]
        """Reduces lists of tensors; each process gets its element."""
        work = None
        for output, inputs in zip(output_tensors, input_tensors, strict=True):
            stacked = torch.stack(_on_real(inputs))
            work = self._scatter_sum(processes.real(output), stacked, opts)
        return work

    def reduce_scatter_coalesced(self, output_tensors: Any, input_tensors: Any, opts: Any) -> Any:
        """Reduces several lists of tensors."""
        return self.reduce_scatter(output_tensors, input_tensors, opts)

    def _reduce_scatter_base(self, output: Any, input: Any, opts: Any) -> Any:  # noqa: A002
        real = processes.real(output)
        return self._scatter_sum(real, processes.real(input).clone().view(self.size(), *real.shape), opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Reduces several tensors; each process gets its part of each."""
        work = None
        for output, tensor in zip(outputs, inputs, strict=True):
            work = self._reduce_scatter_base(output, tensor, opts)
        return work

    def _scatter_sum(self, output: torch.Tensor, parts: torch.Tensor, opts: Any) -> Any:
        reduce = dist.AllreduceOptions()
        if opts is not None:
            reduce.reduceOp = opts.reduceOp
        work = self._run("allreduce", [parts], reduce)
        output.copy_(parts[self.rank()])
        return work

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """Sends each process an element of a list."""
        inputs, outputs = _on_real(input_tensors), _on_real(output_tensors)
        sent = torch.cat([t.contiguous().reshape(-1) for t in inputs])
        received = sent.new_empty(sum(t.numel() for t in outputs))
        sizes = [t.numel() for t in outputs], [t.numel() for t in inputs]
        work = self._run("alltoall_base", received, sent, *sizes, dist.AllToAllOptions())
        for output, part in zip(outputs, received.split(sizes[0]), strict=True):
            output.copy_(part.view(output.shape))
        return work

    def alltoall_base(self, output: Any, input: Any, output_splits: Any, input_splits: Any, opts: Any = None) -> Any:  # noqa: A002
        """Sends each process a part of a tensor."""
        return self._run("alltoall_base", output, input, output_splits, input_splits, opts or dist.AllToAllOptions())

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any) -> Any:  # type: ignore[override]
        """Gathers tensors in one process."""
        return self._run("gather", output_tensors, input_tensors, opts)

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any) -> Any:  # type: ignore[override]
        """Sends each process an element of one process's list."""
        return self._run("scatter", output_tensors, input_tensors, opts)

    def send(self, tensors: Any, dst_rank: int, tag: int = 0) -> Any:
        """Sends tensors to a process."""
        return self._run("send", tensors, dst_rank, tag)

    def recv(self, tensors: Any, src_rank: int, tag: int = 0) -> Any:
        """Receives tensors from a process."""
        return self._run("recv", tensors, src_rank, tag)

    def barrier(self, opts: Any = None) -> Any:
        """Waits for all processes."""
        return self._run("allreduce", [torch.zeros(1, device=processes.device.real_device())], dist.AllreduceOptions())

    def allreduce_coalesced(self, *args: Any) -> Any:
        """Not supported.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("the backend xla has no allreduce_coalesced: call all_reduce for each tensor")

    def recv_anysource(self, *args: Any) -> Any:
        """Not supported.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("the backend xla has no recv_anysource: name the process that sends")

    def monitored_barrier(self, *args: Any) -> Any:
        """Not supported.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("the backend xla has no monitored_barrier: use barrier")

    # The names from torch 2.13 on.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced  # type: ignore[assignment]
    reduce_scatter_single = _reduce_scatter_base  # type: ignore[assignment]
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced  # type: ignore[assignment]
    all_to_all_single = alltoall_base  # type: ignore[assignment]


def _rendezvous(url: str, timeout: timedelta | None = None, **kwargs: Any) -> Iterator[tuple[Any, int, int]]:
    """The init method "xla://": ranks come from torch_xla.launch, xmp.spawn or torchrun; without them there is one process."""
    rank, world = processes.ordinal(), processes.world_size()
    if world == 1:
        yield dist.HashStore(), 0, 1
    else:
        yield from dist.rendezvous("env://", rank, world)


def infer_mesh(ranks: Sequence[int], world: int) -> list[list[int]]:
    """All groups of the same kind as `ranks`, rows or columns of a matrix of all ranks.

    Raises:
        ValueError: `ranks` is no such row or column.
    """
    size, given = len(ranks), list(ranks)
    if size and world % size == 0:
        rows = [list(range(i, i + size)) for i in range(0, world, size)]
        columns = [list(range(i, world, world // size)) for i in range(world // size)]
        for mesh in (rows, columns):
            if given in mesh:
                return mesh
    raise ValueError(f"ranks={given} is no row or column of a matrix of the {world} ranks")


def _with_mesh(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        options = pg_options.get("xla_pg_options") if isinstance(pg_options, dict) else None
        given = None if options is not None else pg_options
        group = original(ranks, timeout, backend, given, *args, **kwargs)
        if isinstance(group, ProcessGroupXla):
            world = dist.get_world_size()
            if options and options.get("spmd") and ranks is not None:
                group._mesh = infer_mesh(ranks, world)
            elif ranks is None or len(ranks) == world:
                group._mesh = [list(range(world))]
            else:
                group._mesh = [list(ranks)]
        return group

    new_group._markstep_original = original  # type: ignore[attr-defined]
    return new_group


def register() -> None:
    """Makes `torch.distributed.init_process_group("xla")` and "xla://" work; a second call does nothing."""
    if hasattr(dist.Backend, "XLA"):
        return
    dist.Backend.register_backend("xla", ProcessGroupXla, devices=["xla"])
    dist.register_rendezvous_handler("xla", _rendezvous)
    wrapped = _with_mesh(dist.new_group)
    dist.new_group = wrapped
    dist.distributed_c10d.new_group = wrapped


register()
