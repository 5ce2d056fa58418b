"""The xla device: tensors, views, errors, modules, and what leaves it."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import markstep
from markstep.xla import device


def test_factories_and_transfers() -> None:
    assert torch.zeros(2, device="xla").device == torch.device("xla:0")
    assert torch.randn(2).to("xla").device.type == "xla" and torch.tensor([1.0, 2.0], device="xla").tolist() == [1, 2]
    assert torch.arange(6, device=torch.device("xla")).view(2, 3).sum(1).tolist() == [3, 12]
    assert torch.ones_like(torch.zeros(2, device="xla")).device.type == "xla"
    assert torch.ones_like(torch.zeros(2, device="xla"), device="cpu").device.type == "cpu"
    assert type(torch.zeros(2, device="xla")) is torch.Tensor and torch.zeros(2, device="xla").is_xla
    target = torch.empty(3)
    assert target.copy_(torch.arange(3.0, device="xla")) is target and target.tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match=r"Use Tensor\.cpu\(\)"):
        torch.zeros(2, device="xla").numpy()
    assert torch.zeros(2, device="xla").data_ptr() == 0
    assert "device='xla:0'" in repr(torch.zeros(2, device="xla"))


def test_tensors_of_the_cpu_mix_in() -> None:
    a = torch.arange(3.0, device="xla")
    for result in (a + torch.ones(3), torch.ones(3) + a, a * torch.tensor(2.0), torch.where(a > 1, a, torch.zeros(3))):
        assert result.device.type == "xla"
    assert (a + torch.ones(3)).tolist() == [1, 2, 3]


def test_views_and_writes_are_pytorchs() -> None:
    for where in ("cpu", "xla"):
        a = torch.arange(12.0, device=where).view(3, 4)
        row, flat, turned = a[1], a.view(-1), a.t()
        row.add_(100)
        flat[0] = -1
        turned[3].mul_(2)
        a[:, 1:3].clamp_(max=5)
        a.unsqueeze_(0).squeeze_(0)
        assert a.tolist() == [[-1, 1, 2, 6], [104, 5, 5, 214], [8, 5, 5, 22]]
        with pytest.raises(RuntimeError, match="single memory location"):
            torch.zeros(3, device=where).expand(2, 3).add_(1)
        with pytest.raises(IndexError):
            torch.zeros(3, device=where)[torch.tensor([5], device=where)]
        assert torch.isnan(torch.maximum(torch.tensor([float("nan")], device=where), torch.zeros(1, device=where))).all()


def test_metadata_changes_are_seen() -> None:
    a = torch.arange(6.0, device="xla")
    b = a.detach()
    assert a.resize_(2, 2).shape == (2, 2) and b.shape == (6,)
    assert a.t_().stride() == (1, 2) and a.transpose_(0, 1).stride() == (2, 1)
    c = torch.zeros(1, device="xla")
    c.set_(b)
    c[5] = 50
    assert c.shape == (6,) and b[5].item() == 50
    c.data = torch.ones(2, 2, device="xla")
    assert c.sum().item() == 4
    out = torch.empty(0, device="xla")
    assert torch.add(b, 1, out=out) is out and out.tolist() == [1, 2, 3, 4, 5, 51]


def test_a_view_that_pytorch_does_not_have_is_a_copy_that_cannot_go_wrong_silently() -> None:
    a = torch.arange(6.0, device="xla").view(2, 3)
    flat = a.t().view(-1)
    assert flat.tolist() == [0, 3, 1, 4, 2, 5]
    for written in (a, flat):
        with pytest.raises(RuntimeError, match="Use .reshape"):
            written.add_(1)
    del flat, written
    assert a.add_(1).sum().item() == 21
    with pytest.raises(RuntimeError, match="invalid for input"):
        a.t().view(4)


def test_copies_and_files() -> None:
    net = nn.Linear(2, 2).to("xla")
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert twin.weight.device.type == "xla" and torch.equal(twin.weight, net.weight)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert loaded["weight"].device.type == "xla" and torch.equal(loaded["weight"], net.weight)
    file.seek(0)
    assert torch.load(file, map_location="cpu", weights_only=True)["weight"].device.type == "cpu"


def test_modules_keep_their_parameters() -> None:
    net: Any = nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 4, bias=False))
    net[1].weight = net[0].weight
    weight = net[0].weight
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    net.to("xla")
    assert net[1].weight is net[0].weight is weight and weight.is_leaf and weight.device.type == "xla"
    net(torch.tensor([1], device="xla")).sum().backward()
    before = weight.cpu()
    optimizer.step()
    assert not torch.equal(weight.cpu(), before)
    assert net.to("cpu")[0].weight is weight and weight.device.type == "cpu" and weight.grad.device.type == "cpu"
    assert nn.Linear(2, 2).to(torch.float64).weight.dtype == torch.float64


def test_values_in_the_middle_of_a_step() -> None:
    """A step that reads, prints and branches on values gives what eager gives."""

    def run(where: str) -> list[Any]:
        torch.manual_seed(0)
        net, seen = nn.Linear(4, 4).to(where), []
        for i in range(8):
            x = torch.full((2, 4), float(i)).to(where)
            y = net(x)
            if y.sum().item() > 0:
                y = y * 2
            seen.append(y.detach().cpu().numpy().copy())
            seen.append(f"{y.detach().mean():.6f}")
            y.sum().backward()
            with torch.no_grad():
                for p in net.parameters():
                    assert p.grad is not None
                    p -= 0.01 * p.grad
                    p.grad = None
            if where == "xla":
                device.barrier("mark_step")
        return seen

    for want, got in zip(run("cpu"), run("xla"), strict=True):
        assert np.array_equal(want, got) if isinstance(want, np.ndarray) else want == got


def test_memory_of_the_cpu_may_change_after_a_transfer() -> None:
    """As with a loader that fills the same buffer again: the step has seen what was there at the time of the transfer."""
    buffer, totals = torch.zeros(3), []
    total = torch.zeros(3, device="xla")
    for i in range(8):
        buffer.fill_(i)
        moved, added = buffer.to("xla"), total + buffer
        buffer.fill_(-1000)
        total = added * 1 + moved
        device.barrier("mark_step")
        totals.append(total)
    assert [t[0].item() for t in totals] == [0, 2, 6, 12, 20, 30, 42, 56]
    assert markstep.explain().compiled_steps


@pytest.mark.parametrize("threads", [False, True])
def test_backward_hooks_may_read(threads: bool) -> None:
    """They run in the calling thread, or in one of autograd's for a script that turns its threads on."""
    torch.zeros((), device="xla").add(1)
    assert not torch.autograd.is_multithreading_enabled()  # type: ignore[attr-defined]
    with torch.autograd.set_multithreading_enabled(threads):
        names = _hooks_that_read()
    assert (threading.current_thread().name in names) is not threads and len(names) == 1


def _hooks_that_read() -> set[str]:
    names: set[str] = set()
    for _ in range(6):
        seen: list[float] = []
        x = torch.arange(3.0).to("xla").requires_grad_()

        def hook(grad: Tensor, seen: list[float] = seen) -> None:
            names.add(threading.current_thread().name)
            seen.extend(grad.cpu().tolist())

        y = x * 2
        y.register_hook(hook)
        y.square().sum().backward()
        device.barrier("mark_step")
        assert seen == [0, 4, 8] and x.grad is not None and x.grad.tolist() == [0, 8, 16]
    return names


def test_a_script_without_a_barrier_is_told() -> None:
    net = nn.Linear(2, 2).to("xla")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        net(torch.ones(1, 2, device="xla")).sum().backward()
        optimizer.step()
    (text,) = markstep.explain().warnings
    assert "8 optimizer steps without torch_xla.sync()" in text and "test_device.py:" in text
    assert markstep.explain().compiled_steps > 5


def test_wrong_devices() -> None:
    with pytest.raises(TypeError, match="expected an xla tensor"):
        device.to_real(torch.zeros(1))
    with pytest.raises(RuntimeError, match="only strided tensors"):
        torch.eye(2, device="xla").to_sparse()


def test_real_tensors_share_memory() -> None:
    a = torch.zeros(2, device="xla")
    device.to_real(a)[1] = 5
    assert a.tolist() == [0, 5]
    b = torch.zeros(2)
    device.from_real(b).add_(1)
    assert b.tolist() == [1, 1]


def test_writes_to_the_real_tensor_come_after_pending_reads() -> None:
    """As a collective that works in place: what was called before it has seen the old values."""
    x = torch.zeros(2, device="xla")
    for i in range(8):
        doubled = x * 2
        device.to_real(x).add_(1)
        later = x * 2
        device.barrier("mark_step")
        assert doubled.tolist() == [2 * i] * 2 and later.tolist() == [2 * i + 2] * 2
    assert markstep.explain().compiled_steps
