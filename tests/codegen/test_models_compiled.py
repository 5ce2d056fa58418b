"""Every kind of model compiles for real, once, and trains like eager within rounding."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.engine.test_models import Block, hugging_face
from tests.helpers import snapshot
from torch import nn
from torch.nn import functional as F

import markstep
from markstep.engine import report
from markstep.engine.trial import Trial

pytestmark = pytest.mark.compile


@pytest.fixture(autouse=True)
def _always_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tiny models are faster eagerly; here the compiled program has to run all the same."""
    monkeypatch.setattr(Trial, "next", lambda self: "predict")
    yield


def losses_and_state(make: Callable[[], Any], steps: int, wrap: Callable[[Any], Any]) -> tuple[list[Any], dict[str, Any]]:
    torch.manual_seed(0)
    step, state = make()
    step = wrap(step)
    torch.manual_seed(1)
    losses = [snapshot(step(i)) for i in range(steps)]
    return losses, snapshot(state)


def compare_compiled(
    make: Callable[[], Any], steps: int = 12, tolerance: float = 1e-4, graphs: int = 1, **options: Any
) -> report.Report:
    """Results of every step within `tolerance` relative to eager's, weights and optimizer state at the end too."""
    want, want_state = losses_and_state(make, steps, lambda fn: fn)
    found = report.reset()
    options = {"background": False, "rng": "torch", **options}
    got, got_state = losses_and_state(make, steps, lambda fn: markstep.compile(fn, **options))
    assert sum(p.state == "ready" for p in found.programs) >= graphs, str(found)
    assert found.compiled_steps >= steps - 6, str(found)
    for i, (a, b) in enumerate(zip(want, got, strict=True)):
        close(a, b, tolerance, f"step {i}")
    mostly_close(want_state, got_state, tolerance)
    return found


def mostly_close(want: dict[str, Any], got: dict[str, Any], tolerance: float) -> None:
    """Weights and optimizer state: where a gradient is zero but for rounding, Adam turns the rounding into a step."""
    assert list(want) == list(got)
    off = count = 0
    for path, a in want.items():
        if isinstance(a, torch.Tensor) and a.is_floating_point() and a.numel():
            allowed = 10 * tolerance * max(a.float().abs().max().item(), 1e-6)
            off += int(((a.float() - got[path].float()).abs() > allowed).sum())
            count += a.numel()
    assert off <= 0.03 * count, f"{off} of {count} values differ"


def close(want: dict[str, Any], got: dict[str, Any], tolerance: float, where: str) -> None:
    assert list(want) == list(got), where
    for path, a in want.items():
        b = got[path]
        if isinstance(a, torch.Tensor) and a.is_floating_point():
            scale = a.float().abs().max().item() if a.numel() else 1.0
            torch.testing.assert_close(
                b, a, rtol=tolerance, atol=tolerance * max(scale, 1e-3), msg=lambda m, p=path: f"{where}: {p}: {m}"
            )
        elif isinstance(a, torch.Tensor):
            assert torch.equal(a, b), f"{where}: {path}"
        else:
            assert a == b, f"{where}: {path}: {a} {b}"


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "bart", "vit", "resnet"])
def test_hugging_face(name: str) -> None:
    compare_compiled(hugging_face(name, None), steps=50 if name == "bert" else 12)


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_hugging_face_bf16(name: str) -> None:
    compare_compiled(hugging_face(name, torch.bfloat16), tolerance=3e-2)


def test_lstm() -> None:
    def make() -> Any:
        lstm, head = nn.LSTM(5, 7, num_layers=2, dropout=0.2, batch_first=True), nn.Linear(7, 3)
        optimizer = torch.optim.Adam([*lstm.parameters(), *head.parameters()], lr=1e-2, fused=True)
        x, y = torch.randn(4, 6, 5), torch.randint(3, (4,))

        def step(i: int) -> Any:
            out, _ = lstm(x)
            loss = F.cross_entropy(head(out[:, -1]), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return step, [lstm, head, optimizer]

    compare_compiled(make)


def test_train_and_eval_with_batch_norm_and_changing_numbers() -> None:
    """Two programs; a single-tensor optimizer whose bias corrections are numbers that change every step."""

    def make() -> Any:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), Block(4), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5))
        x, y = torch.randn(3, 3, 8, 8), torch.randint(5, (3,))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

        def step(i: int) -> Any:
            model.train(i % 3 != 2)
            if not model.training:
                with torch.no_grad():
                    return F.cross_entropy(model(x), y)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            return loss

        return step, [model, optimizer]

    found = compare_compiled(make, steps=18, graphs=2)
    assert any(p.scalar_inputs > 10 for p in found.programs)


def test_gan_with_two_optimizers_and_momentum() -> None:
    def make() -> Any:
        generator = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        critic = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2, inplace=True), nn.Dropout(0.3), nn.Linear(8, 1))
        optimizers = [torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9) for m in (generator, critic)]
        real, bce = torch.randn(6, 2), nn.BCEWithLogitsLoss()

        def step(i: int) -> Any:
            fake = generator(torch.randn(6, 4))
            optimizers[1].zero_grad()
            critic_loss = bce(critic(real), torch.ones(6, 1)) + bce(critic(fake.detach()), torch.zeros(6, 1))
            critic_loss.backward()
            optimizers[1].step()
            optimizers[0].zero_grad()
            loss = bce(critic(fake), torch.ones(6, 1))
            loss.backward()
            optimizers[0].step()
            return critic_loss, loss, fake

        return step, [generator, critic, *optimizers]

    compare_compiled(make)


def test_value_read_in_the_middle_and_gradients_kept() -> None:
    """The loss is read between forward and backward: two programs, whose saved activations cross the boundary."""

    def make() -> Any:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        x, y = torch.randn(7, 6), torch.randn(7, 1)
        kept = {"grads": []}

        def step(i: int) -> Any:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            seen = loss.item()
            loss.backward()
            optimizer.step()
            kept["grads"] = [p.grad for p in model.parameters()]
            return torch.tensor(seen), loss

        return step, [model, kept]

    found = compare_compiled(make)
    assert {what for what, _ in found.boundaries} == {"aten::_local_scalar_dense", "end of the step"}
