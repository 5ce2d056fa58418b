"""Checks of the backend smddp for each of two processes; test_smddp.py runs this and makes a test of each function."""

import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

OPS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG")


def rank() -> int:
    return dist.get_rank()


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = int(torch.tensor(shape).prod())
    return (torch.arange(count).view(shape) + 1 + 10 * rank()).to(dtype)


def same_as_gloo(run: Callable[[Any], Any]) -> None:
    """`run(group)` gives the same with smddp as with gloo, results or errors."""
    found = []
    for backend in ("gloo", "smddp"):
        group = dist.new_group(backend=backend)
        try:
            found.append(run(group))
        except Exception as error:
            found.append((type(error), str(error).partition("smddp")[0].partition("gloo")[0]))
        dist.barrier()
    flat = [torch.utils._pytree.tree_leaves(value) for value in found]
    assert len(flat[0]) == len(flat[1])
    for a, b in zip(*flat, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, found


def check_name_of_the_backend() -> None:
    assert dist.get_backend() == "smddp"
    assert dist.get_backend_config() == "cpu:smddp,cuda:smddp"
    assert dist.get_world_size() == 2


def check_new_groups() -> None:
    for group in (dist.new_group(), dist.new_group(backend="smddp"), dist.new_group([0, 1], timeout=timedelta(seconds=30))):
        assert dist.get_backend(group) == "smddp"
        value = torch.ones(2)
        dist.all_reduce(value, group=group)
        assert value.tolist() == [2, 2]
    alone, other = (dist.new_group([r]) for r in (0, 1))
    value = torch.ones(1)
    dist.all_reduce(value, group=alone if rank() == 0 else other)
    assert value.item() == 1
    beside = dist.new_group(backend="gloo")
    assert dist.get_backend(beside) == "gloo"
    dist.monitored_barrier(beside, timeout=timedelta(seconds=20))


def check_all_reduce() -> None:
    for name in OPS:
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64):

            def run(group: Any, name: str = name, dtype: torch.dtype = dtype) -> torch.Tensor:
                value = tensor(5, dtype=dtype)
                dist.all_reduce(value, getattr(dist.ReduceOp, name), group)
                return value

            same_as_gloo(run)
    value = tensor(2)
    dist.all_reduce(value)
    assert value.tolist() == [12, 14]


def check_broadcast_and_reduce() -> None:
    for source in (0, 1):
        value = tensor(3)
        dist.broadcast(value, source)
        assert value.tolist() == [10 * source + i for i in (1, 2, 3)]
        value = tensor(3)
        dist.reduce(value, source)
        assert rank() != source or value.tolist() == [12, 14, 16]


def check_all_gather() -> None:
    parts = [torch.zeros(2) for _ in range(2)]
    dist.all_gather(parts, tensor(2))
    assert [p.tolist() for p in parts] == [[1, 2], [11, 12]]
    whole = torch.zeros(4)
    dist.all_gather_into_tensor(whole, tensor(2))
    assert whole.tolist() == [1, 2, 11, 12]


def check_reduce_scatter() -> None:
    out = torch.zeros(2)
    dist.reduce_scatter_tensor(out, tensor(4))
    assert out.tolist() == ([12, 14] if rank() == 0 else [16, 18])

    def run(group: Any) -> torch.Tensor:
        value = torch.zeros(2)
        dist.reduce_scatter(value, list(tensor(4).chunk(2)), group=group)
        return value

    same_as_gloo(run)


def check_all_to_all() -> None:
    out = torch.zeros(2)
    dist.all_to_all_single(out, tensor(2))
    assert out.tolist() == [1 + rank(), 11 + rank()]

    def run(group: Any) -> list[torch.Tensor]:
        values = [torch.zeros(1), torch.zeros(1)]
        dist.all_to_all(values, list(tensor(2).chunk(2)), group=group)
        return values

    same_as_gloo(run)


def check_gather_and_scatter() -> None:
    parts = [torch.zeros(1) for _ in range(2)] if rank() == 1 else None
    dist.gather(tensor(1), parts, dst=1)
    assert parts is None or [p.item() for p in parts] == [1, 11]
    out = torch.zeros(2)
    dist.scatter(out, [torch.ones(2), torch.full((2,), 2.0)] if rank() == 0 else None, src=0)
    assert out.tolist() == [rank() + 1] * 2


def check_send_and_receive() -> None:
    value = torch.zeros(2)
    if rank() == 0:
        dist.send(tensor(2), 1, tag=3)
        assert dist.recv(value, None) == 1
    else:
        dist.recv(value, 0, tag=3)
        dist.isend(tensor(2), 0).wait()
    assert value.tolist() == ([11, 12] if rank() == 0 else [1, 2])
    other, value = 1 - rank(), torch.zeros(2)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor(2), other), dist.P2POp(dist.irecv, value, other)]):
        work.wait()
    assert value.tolist() == ([11, 12] if rank() == 0 else [1, 2])


def check_barrier() -> None:
    began = time.monotonic()
    time.sleep(0.4 * rank())
    dist.barrier()
    assert time.monotonic() - began > 0.35
    work = dist.barrier(async_op=True)
    assert work is not None
    work.wait()


def check_objects() -> None:
    found: list[Any] = [None, None]
    dist.all_gather_object(found, {"rank": rank()})
    assert found == [{"rank": 0}, {"rank": 1}]
    sent = ["a", rank()]
    dist.broadcast_object_list(sent, src=1)
    assert sent == ["a", 1]
    gathered = [None, None] if rank() == 0 else None
    dist.gather_object(rank(), gathered)
    assert gathered in (None, [0, 1])
    got: list[Any] = [None]
    dist.scatter_object_list(got, ["x", "y"] if rank() == 0 else None)
    assert got == ["xy"[rank()]]


def check_asynchronous() -> None:
    value = torch.ones(1000)
    work = dist.all_reduce(value, async_op=True)
    assert isinstance(work, dist.Work)
    assert work.get_future().wait()[0][0].item() == 2
    assert work.wait()
    assert work.is_completed()


def check_functional_collectives() -> None:
    assert (functional.all_reduce(tensor(2), "sum", dist.group.WORLD) + 0).tolist() == [12, 14]
    assert (functional.all_gather_tensor(tensor(1), 0, dist.group.WORLD) + 0).tolist() == [1, 11]
    assert (functional.reduce_scatter_tensor(tensor(2), "sum", 0, dist.group.WORLD) + 0).tolist() == [12 + 2 * rank()]


def check_no_gradient_is_counted_twice() -> None:
    """SMDDP 1.1.1 added one worker's gradients twice."""
    model = DistributedDataParallel(nn.Linear(3, 1, bias=False))
    for _ in range(3):
        model.zero_grad()
        model(tensor(1, 3)).sum().backward()
        assert model.module.weight.grad is not None
        assert model.module.weight.grad.tolist() == [[6, 7, 8]]


class Branches(nn.Module):
    """One of two layers, by rank and step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.last = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        return self.last(self.layers[which](x))  # type: ignore[no-any-return]


def expected_gradients(make: Callable[[], nn.Module], inputs: list[tuple[Any, ...]]) -> list[torch.Tensor]:
    """The mean over the ranks of the gradients that one process computes."""
    model = make()
    for arguments in inputs:
        (model(*arguments).sum() / len(inputs)).backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


def make_branches() -> nn.Module:
    torch.manual_seed(3)
    return Branches()


def ddp_gradients(inputs: list[tuple[Any, ...]], **chosen: Any) -> None:
    model = DistributedDataParallel(make_branches(), **chosen)
    for _ in range(3):
        model.zero_grad(set_to_none=False)
        model(*inputs[rank()]).sum().backward()
    for got, want in zip(model.module.parameters(), expected_gradients(make_branches, inputs), strict=True):
        torch.testing.assert_close(torch.zeros_like(got) if got.grad is None else got.grad, want)


def check_ddp_find_unused_parameters() -> None:
    inputs = [(torch.full((2, 4), float(r + 1)), r) for r in (0, 1)]
    ddp_gradients(inputs, find_unused_parameters=True)


def check_ddp_gradient_as_bucket_view() -> None:
    inputs = [(torch.full((2, 4), float(r + 1)), 0) for r in (0, 1)]
    ddp_gradients(inputs, find_unused_parameters=True, gradient_as_bucket_view=True)


def check_ddp_static_graph() -> None:
    inputs = [(torch.full((2, 4), float(r + 1)), 0) for r in (0, 1)]
    ddp_gradients(inputs, static_graph=True)


def check_ddp_small_buckets() -> None:
    inputs = [(torch.full((2, 4), float(r + 1)), r) for r in (0, 1)]
    ddp_gradients(inputs, find_unused_parameters=True, bucket_cap_mb=1e-5)


def check_ddp_no_sync() -> None:
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    with model.no_sync():
        model(tensor(1, 1)).sum().backward()
    assert model.module.weight.grad is not None
    assert model.module.weight.grad.item() == 1 + 10 * rank()
    model(tensor(1, 1)).sum().backward()
    assert model.module.weight.grad.item() == 12  # the mean of 2 and 22


def check_ddp_buffers_and_parameters_of_rank_0() -> None:
    torch.manual_seed(rank())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    model(torch.randn(4, 2)).sum().backward()
    model(torch.randn(4, 2))  # begins with the buffers of rank 0
    found: list[Any] = [None, None]
    dist.all_gather_object(found, [p.detach() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def check_ddp_hook() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = DistributedDataParallel(nn.Linear(3, 1, bias=False))
    model.register_comm_hook(None, fp16_compress_hook)
    model(tensor(1, 3)).sum().backward()
    assert model.module.weight.grad is not None
    assert model.module.weight.grad.tolist() == [[6, 7, 8]]


def check_prefix_of_state_dict() -> None:
    model = DistributedDataParallel(nn.Linear(2, 1))
    saved = model.state_dict()
    assert list(saved) == ["module.weight", "module.bias"]
    nn.modules.utils.consume_prefix_in_state_dict_if_present(saved, "module.")
    nn.Linear(2, 1).load_state_dict(saved)


def check_sync_batch_norm() -> None:
    def run(group: Any) -> Any:
        layer = nn.SyncBatchNorm(2, process_group=group)
        return layer(tensor(2, 2))

    same_as_gloo(run)  # PyTorch has it for GPUs only


def check_zero_redundancy_optimizer() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def trained(optimizer: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)))
        chosen = optimizer(model.parameters())
        for _ in range(3):
            chosen.zero_grad()
            model(tensor(2, 4) / 10).sum().backward()
            chosen.step()
        return [p.detach() for p in model.parameters()]

    plain = trained(lambda p: torch.optim.AdamW(p, lr=0.1))
    zero = trained(lambda p: ZeroRedundancyOptimizer(p, optimizer_class=torch.optim.AdamW, lr=0.1))
    for a, b in zip(plain, zero, strict=True):
        torch.testing.assert_close(a, b)


def sharded(shard: Callable[[nn.Module], nn.Module]) -> None:
    model = shard(make_small())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    plain = make_small()
    reference = torch.optim.SGD(plain.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        reference.zero_grad()
        loss = model(tensor(2, 4) / 10).square().mean()
        loss.backward()
        optimizer.step()
        wanted = torch.zeros(())
        for r in (0, 1):
            x = (torch.arange(8).view(2, 4) + 1 + 10 * r) / 10
            wanted = plain(x).square().mean() / 2
            wanted.backward()
        reference.step()
    x = torch.ones(1, 4)
    torch.testing.assert_close(model(x), plain(x))


def make_small() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def check_fully_sharded_data_parallel() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    sharded(lambda model: FullyShardedDataParallel(model, device_id=torch.device("cpu")))


def check_fully_shard() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    sharded(lambda model: fully_shard(model, mesh=init_device_mesh("cpu", (2,))))  # type: ignore[return-value]


def check_stalled_collective_ends_after_its_timeout() -> None:
    """SMDDP 1.2.2 got a timeout for stalled all-reduces."""
    group = dist.new_group(timeout=timedelta(seconds=2))
    began = time.monotonic()
    if rank() == 0:
        try:
            dist.all_reduce(torch.ones(1), group=group)
        except RuntimeError as error:
            assert "imed out" in str(error)
        else:
            raise AssertionError("the other process did not take part")
        assert 1.5 < time.monotonic() - began < 15
    dist.barrier()


def check_memory_of_all_reduce() -> None:
    """SMDDP 2.0.1 leaked memory of the CPU in each all-reduce."""
    value = torch.ones(250_000)

    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB

    for _ in range(20):
        dist.all_reduce(value.fill_(1))
    before = peak()
    for _ in range(200):  # 200 MB in all
        dist.all_reduce(value.fill_(1))
    assert peak() - before < 40_000


def check_local_rank_variable() -> None:
    assert os.environ["SMDATAPARALLEL_LOCAL_RANK"] == str(rank()) == os.environ["LOCAL_RANK"]


def main() -> None:
    found: dict[str, str] = {}
    dist.init_process_group(backend="smddp", timeout=timedelta(seconds=60))
    path = Path(sys.argv[1]) / f"{rank()}.json"
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            try:
                check()
                found[name.removeprefix("check_")] = ""
            except Exception:
                found[name.removeprefix("check_")] = traceback.format_exc()
            path.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
