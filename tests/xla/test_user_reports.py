"""What users of torch_xla reported, as small scripts (numbers are issues of pytorch/xla): it works on Markstep's xla device.

Programs are followed with the interpreter: whether something is compiled anew does not depend on the compiler.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import same_bits
from torch import Tensor, nn

import markstep
from markstep.compat.exposing import expose_torch_xla
from markstep.engine.report import Report

os.environ.setdefault("USE_TORCH_XLA", "0")  # Transformers and Accelerate in the other tests of this process stay on the CPU
expose_torch_xla()

import torch_xla  # noqa: E402
import torch_xla.core.xla_model as xm  # noqa: E402
import torch_xla.debug.metrics as met  # noqa: E402
import torch_xla.distributed.parallel_loader as pl  # noqa: E402
import torch_xla.utils.checkpoint as xla_checkpoint  # noqa: E402
from torch_xla.amp import GradScaler, syncfree  # noqa: E402

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _step() -> None:
    """A step begins, and nothing is counted yet."""
    torch_xla.sync()
    met.clear_all()


def both(script: Callable[[str], Any]) -> None:
    """The script returns the same bits on both devices."""
    want, got = script("cpu"), script("xla")
    assert len(want) == len(got) > 0
    for a, b in zip(want, got, strict=True):
        if isinstance(a, Tensor):
            assert b.device.type == "xla"
            assert same_bits(a, b.cpu()), f"{a}\n{b}"
        else:
            assert a == b


def settles(step: Callable[[int], object], *, half: int = 6, programs: int = 8) -> Report:
    """The first steps may find programs, at most so many; as many more find none and are replayed."""
    for i in range(half):
        step(i)
        torch_xla.sync()
    found = markstep.explain()
    known, replayed = len(found.programs), found.compiled_steps
    assert 1 <= known <= programs, found
    for i in range(half, 2 * half):
        step(i)
        torch_xla.sync()
    assert len(found.programs) == known, f"recompiled in the second half\n{found}"
    assert found.compiled_steps - replayed >= half - 1, found
    return found


def model_and_data() -> tuple[nn.Module, Tensor, Tensor]:
    model = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 1)).to("xla")
    return model, torch.randn(8, 6).to("xla"), torch.randn(8, 1).to("xla")


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_optimizer_with_a_schedule_is_not_recompiled(name: str) -> None:
    """#5554, #2713, #990: bias correction and learning rate change at every step."""
    model, x, y = model_and_data()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (i + 1))

    def step(i: int) -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        xm.optimizer_step(optimizer)
        schedule.step()

    before = next(model.parameters()).detach().cpu()
    settles(step, programs=4)
    assert not torch.equal(before, next(model.parameters()).cpu())


def test_equal_numbers_are_two_inputs() -> None:
    """#3604: two numbers that happen to be equal in one step shared one input, which was another program."""
    x = torch.ones(4, device="xla")
    results: list[float] = []

    def step(i: int) -> None:
        alpha, beta = (0.5, 0.5) if i == 8 else (0.1 * i, 0.3)
        results.append((x.add(x, alpha=alpha) + x.mul(beta)).sum().item())

    settles(step)
    want = [4 * (1 + (0.5 + 0.5 if i == 8 else 0.1 * i + 0.3)) for i in range(12)]
    assert results == pytest.approx(want)


def test_random_numbers_and_a_read_value_in_a_loop() -> None:
    """#2783: the chain of seeds grew, and with it the program."""
    seen: list[float] = []
    settles(lambda i: seen.append(float(torch.randn(3, 3, device="xla").sum())))
    assert len(set(seen)) == 12


def test_addcdiv_with_changing_value_is_no_transfer() -> None:
    """#4213: the number was uploaded in a transfer of its own, at every call."""
    x, y = torch.ones(3, device="xla"), torch.full((3,), 2.0, device="xla")

    def step(i: int) -> None:
        x.addcdiv_(y, y, value=0.25 * i)

    settles(step)
    transfers = met.metric_data("TransferToDeviceTime")
    assert transfers is None or transfers[0] <= 2
    assert x.cpu().tolist() == [1 + 0.25 * sum(range(12))] * 3


def test_assignment_through_a_mask_does_not_cut_the_step() -> None:
    """#4248: it became nonzero, whose result the host has to see; here the number of hits differs from step to step."""
    a = torch.arange(8.0).to("xla")

    def step(i: int) -> None:
        a[a < i / 2] = 0.75 * i
        a.add_(1)

    found = settles(step)
    assert met.executed_fallback_ops() == []
    assert found.boundaries.total() == 12 or len(found.boundaries) == 1, found
    want = torch.arange(8.0)
    for i in range(12):
        want[want < i / 2] = 0.75 * i
        want += 1
    assert torch.equal(a.cpu(), want)


def test_lstm_is_one_program() -> None:
    """#1196, #2422: it was unrolled and took minutes to compile."""
    lstm = nn.LSTM(4, 6, batch_first=True)
    x = torch.randn(2, 20, 4)
    want = lstm(x)[0].detach()
    lstm, x = lstm.to("xla"), x.to("xla")
    outputs: list[Tensor] = []
    settles(lambda i: outputs.append(lstm(x)[0].detach()))
    torch.testing.assert_close(outputs[-1].cpu(), want)


def test_an_in_place_update_happens_once_however_often_it_is_read() -> None:
    """#3529: printing in a loop applied the pending update again."""

    def script(device: str) -> list[float]:
        b, d = torch.zeros(1, device=device), torch.full((1,), 2.0, device=device)
        b += d
        return [b.item() for _ in range(3)] + [float(str(b.item())) for _ in range(2)]

    both(script)
    assert script("xla")[:3] == [2.0, 2.0, 2.0]


def test_ring_buffer() -> None:
    """#4189, #3619: writes into slices were replayed at every read, and the pending graph grew."""
    buffer, total = torch.zeros(3, device="xla"), 0.0

    def step(i: int) -> None:
        nonlocal total
        buffer[i % 3] = float(i)
        total += buffer.sum().item()

    settles(step, half=9)
    want, wanted = torch.zeros(3), 0.0
    for i in range(18):
        want[i % 3] = float(i)
        wanted += want.sum().item()
    assert total == wanted
    assert torch.equal(buffer.cpu(), want)


def test_data_and_views() -> None:
    """#3392, #3330: assigning `.data` leaves views alone and may change the shape, writing to it is seen by them."""

    def script(device: str) -> list[Tensor]:
        x = torch.zeros(4, device=device)
        view = x[1:]
        x.data = x.data + 1
        other = x[:2]
        x.data.add_(10)
        x.data = torch.ones(2, 2, device=device)
        return [view, other, x]

    both(script)


def test_a_view_of_a_slice() -> None:
    """#7859."""

    def script(device: str) -> list[Tensor]:
        x = torch.arange(12.0, device=device).view(3, 4)
        column = x[:, 1:3].unsqueeze(0)
        column.mul_(2)
        column[0, :, 0] -= 1
        x[1] += 100
        return [x, column, column.transpose(1, 2).contiguous()]

    both(script)


def test_a_written_slice_is_what_all_reduce_sees() -> None:
    """#7240: the collective read the tensor as it was before."""
    x = torch.zeros(4).to("xla")
    x[1:3] += 5
    assert xm.all_reduce(xm.REDUCE_SUM, x).cpu().tolist() == [0, 5, 5, 0]
    x[0] = 7
    xm.all_reduce(xm.REDUCE_SUM, [x])
    assert x.cpu().tolist() == [7, 5, 5, 0]


def test_writing_to_overlapping_memory_raises() -> None:
    """#8917: it gave wrong numbers in silence."""
    x = torch.zeros(3, 1, device="xla").expand(3, 4)
    with pytest.raises(RuntimeError, match="single memory location"):
        x[...] += 1
        torch_xla.sync()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.outer.weight = self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x))


def test_ties_and_optimizers_survive_moving_to_the_device() -> None:
    """#7042, #2719: `.to` made new parameters, two of one, and an optimizer made before kept the old ones."""
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model.to("xla")
    assert model.inner.weight is model.outer.weight
    assert len(list(model.parameters())) == 1
    before = model.inner.weight.detach().cpu()
    model(torch.tensor([1, 2]).to("xla")).square().sum().backward()
    xm.optimizer_step(optimizer, barrier=True)
    assert not torch.equal(before, model.outer.weight.cpu())


def test_argmax_after_softmax() -> None:
    """#2169, #2419: constant in low precision, and wrong for NaN."""

    def script(device: str) -> list[Tensor]:
        x = torch.linspace(-3, 5, 12).reshape(3, 4).flip(1).bfloat16().to(device)
        nan = torch.tensor([1.0, float("nan"), 3.0]).to(device)
        return [x.softmax(1).argmax(1), nan.argmax(), nan.argmin()]

    both(script)


def test_nan_stays_in_a_maximum() -> None:
    nan = torch.tensor([1.0, float("nan"), 3.0]).to("xla")
    assert nan.max().isnan().item()
    assert torch.maximum(nan, torch.zeros_like(nan)).isnan().cpu().tolist() == [False, True, False]


def test_an_index_out_of_range_raises() -> None:
    x, index = torch.arange(4.0).to("xla"), torch.tensor([1, 10]).to("xla")
    for call in (lambda: x.gather(0, index), lambda: x[index], lambda: x.index_select(0, index)):
        with pytest.raises((RuntimeError, IndexError), match="(?i)out of (range|bounds)"):
            call().cpu()


@pytest.mark.parametrize("checkpoint", [xla_checkpoint.checkpoint, torch.utils.checkpoint.checkpoint])
def test_checkpointing_repeats_dropout(checkpoint: Any) -> None:
    """#4690: the second forward drew another mask."""
    x = torch.ones(64, device="xla", requires_grad=True)
    for _ in range(4):
        x.grad = None
        y = checkpoint(lambda t: nn.functional.dropout(t, 0.5), x, use_reentrant=True)
        y.sum().backward()
        torch_xla.sync()
        assert x.grad is not None
        assert torch.equal(x.grad.cpu(), y.detach().cpu())
    assert 0 < (y == 0).sum().item() < 64


@pytest.mark.parametrize("seed", [torch.manual_seed, torch_xla.manual_seed, xm.set_rng_state])
def test_seeds(seed: Callable[[int], object]) -> None:
    """#2092, #2093: torch.manual_seed did not reach the device."""
    draws = []
    for _ in range(2):
        seed(5)
        draws.append(torch.rand(4, device="xla").cpu())
        torch_xla.sync()
    assert torch.equal(*draws)
    assert not torch.equal(draws[0], torch.rand(4, device="xla").cpu())


def test_optimizer_step_on_one_device() -> None:
    """#6977: without a barrier it seemed not to run."""
    weight = nn.Parameter(torch.ones(3, device="xla"))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    weight.sum().backward()
    xm.optimizer_step(optimizer)
    assert weight.tolist() == [0.5, 0.5, 0.5]


def test_saving_in_a_branch(tmp_path: Path) -> None:
    """#2712, #2224: a save that only some ranks reach hung, and a save must not disturb training."""
    model, x, y = model_and_data()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    best, saves = float("inf"), 0
    for i in range(8):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        xm.optimizer_step(optimizer, barrier=True)
        if i % 2 and loss.item() < best:
            best, saves = loss.item(), saves + 1
            xm.save({"model": model.state_dict(), "best": best}, str(tmp_path / "best.pt"))
            kept = {k: v.cpu() for k, v in model.state_dict().items()}
    assert saves
    saved = torch.load(tmp_path / "best.pt")
    assert saved["best"] == best
    for name, value in saved["model"].items():
        assert value.device.type == "cpu"
        assert torch.equal(value, kept[name])


class Breaks(torch.utils.data.Dataset[Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Tensor:
        if i == 5:
            raise ValueError("row 5 is unreadable")
        return torch.full((2,), float(i))


@pytest.mark.timeout(30)
def test_an_error_in_the_loader_reaches_the_loop() -> None:
    """#7727: the loop waited for ever."""
    batches = pl.MpDeviceLoader(torch.utils.data.DataLoader(Breaks(), batch_size=1), "xla")
    seen = []
    with pytest.raises(ValueError, match="row 5 is unreadable"):
        for batch in batches:
            seen.append(batch.sum().item())
    assert seen == [0, 2, 4, 6, 8][: len(seen)]


@pytest.mark.timeout(30)
def test_a_shorter_last_batch() -> None:
    """#3908, #855: every batch arrives, and the other shape is one more program, not one at each epoch."""
    data = torch.utils.data.TensorDataset(torch.arange(10.0))
    batches = pl.MpDeviceLoader(torch.utils.data.DataLoader(data, batch_size=4), "xla")
    known = []
    for _ in range(8):
        total = torch.zeros((), device="xla")
        for (x,) in batches:
            total += (x * 2).sum()
        assert total.item() == 90
        known.append(len(markstep.explain().programs))
    assert known[-1] == known[-3] > 0, markstep.explain()


def test_loss_scaling_does_not_read_from_the_device() -> None:
    """#2918: GradScaler read whether there was an infinity, which cut every step in two."""
    model, x, y = model_and_data()
    optimizer = syncfree.AdamW(model.parameters(), lr=0.1)
    scaler = GradScaler(init_scale=4.0, growth_interval=100)
    weight = next(model.parameters())
    weights: list[Tensor] = []
    infinite = torch.full_like(x, float("inf"))

    def step(i: int) -> None:
        optimizer.zero_grad()
        scaler.scale(nn.functional.mse_loss(model(infinite if i == 9 else x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        weights.append(weight.detach().clone())

    settles(step)
    assert met.executed_fallback_ops() == []
    changed = [not torch.equal(a.cpu(), b.cpu()) for a, b in zip(weights, weights[1:], strict=False)]
    assert changed == [i != 8 for i in range(11)]
    assert scaler.get_scale() == 2.0


def test_the_line_that_reads_a_value_is_named() -> None:
    """#2120, #2296: `.item()` seemed slow, because everything pending runs there, and nothing said so."""
    x = torch.ones(4, device="xla")
    for _ in range(6):
        y = x * 3
        y.sum().item()  # the read
        (y + 1).sum()
        torch_xla.sync()
    assert f"{Path(__file__).name}:{line_of('# the read')}" in str(markstep.explain())


def test_a_script_without_a_barrier_is_told_so() -> None:
    """#6948: the pending graph of all steps grew until memory was full."""
    weight = nn.Parameter(torch.ones(3, device="xla"))
    optimizer = torch.optim.SGD([weight], lr=0.125)
    for _ in range(16):
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()  # no barrier
    (warning,) = markstep.explain().warnings
    assert "torch_xla.sync()" in warning
    assert re.search(rf"{Path(__file__).name}:{line_of('# no barrier')}\b", warning), warning
    assert weight.tolist() == [-1.0] * 3


def line_of(mark: str) -> int:
    """The first line of this file that ends with a comment."""
    return next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith(mark))
