"""Hashed masks: rate, independence, reproducibility, and the same mask in a recomputation."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import markstep
from markstep.codegen import randomness
from markstep.engine.trial import Trial


@pytest.fixture(autouse=True)
def _always_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "next", lambda self: "predict")


def masks(seed: int, count: int, size: int, keep: float) -> torch.Tensor:
    keys = randomness.make_keys(seed, count)
    return torch.stack([randomness._keep((size,), keep, k, torch.device("cpu")) for k in keys]).float()


@pytest.mark.parametrize("keep", [0.9, 0.5, 0.01])
def test_rate(keep: float) -> None:
    """The share of kept elements is within five standard deviations, in every draw and in every block of positions."""
    got = masks(1, 20, 100_000, keep)
    for sample in (got.mean(), *got.mean(1), *got.view(20, 100, 1000).mean((0, 2))):
        count = {0: got.numel()}.get(sample.dim(), 0)
        assert abs(sample - keep) < 5 * (keep * (1 - keep) / min(count, 20_000)) ** 0.5 * 5**0.5


def test_independence() -> None:
    """No correlation between draws, between steps, nor between neighbouring positions, nor of shifted draws."""
    n = 1 << 16
    a = masks(1, 8, n, 0.5) - 0.5
    b = masks(2, 8, n, 0.5) - 0.5
    limit = 6 / n**0.5
    for i in range(8):
        for j in range(8):
            if i != j:
                assert abs((a[i] * a[j]).mean()) * 4 < limit
            assert abs((a[i] * b[j]).mean()) * 4 < limit
        for shift in (1, 2, 64, 768, 4096):
            assert abs((a[i] * a[i].roll(shift)).mean()) * 4 < limit


def test_uniform_and_normal_numbers() -> None:
    keys = randomness.make_keys(3, 2)
    device = torch.device("cpu")
    uniform = randomness._uniform((200_000,), keys[0], device).double()
    assert 0 <= uniform.min() and uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 5 * (1 / 12 / 200_000) ** 0.5
    assert abs(uniform.var() - 1 / 12) < 1e-3
    normal = randomness._normal((200_000,), keys[1], device).double()
    assert abs(normal.mean()) < 5 / 200_000**0.5 and abs(normal.std() - 1) < 1e-2
    assert abs((normal.abs() > 1.96).double().mean() - 0.05) < 3e-3


def train(steps: int, seed: int, recompute: bool, use_reentrant: bool = False, **options: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.3)) for _ in range(2))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    seen: list[torch.Tensor] = []

    def step() -> torch.Tensor:
        h = x.clone().requires_grad_()
        for layer in layers:
            h = checkpoint(layer, h, use_reentrant=use_reentrant) if recompute else layer(h)
        loss = F.mse_loss(h, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = markstep.compile(step, background=False, **options)
    for i in range(steps):
        if i == 3:
            torch.manual_seed(seed)
        seen.append(run())
    assert markstep.explain().compiled_steps >= steps - 3, str(markstep.explain())
    return seen


@pytest.mark.compile
def test_training_is_reproducible_and_steps_differ() -> None:
    first, second, other = (train(8, seed, recompute=False, rng="hash") for seed in (5, 5, 6))
    assert torch.equal(torch.stack(first[3:]), torch.stack(second[3:]))
    assert not torch.equal(torch.stack(first[3:]), torch.stack(other[3:]))


@pytest.mark.compile
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_recomputation_uses_the_same_masks(use_reentrant: bool) -> None:
    """With other masks in backward the gradients, and so the following losses, would differ from those without."""
    plain = train(8, 5, recompute=False, rng="hash")
    again = train(8, 5, recompute=True, use_reentrant=use_reentrant, rng="hash")
    torch.testing.assert_close(torch.stack(again[3:]), torch.stack(plain[3:]), rtol=1e-5, atol=1e-6)


@pytest.mark.compile
def test_a_recomputation_in_another_program_uses_the_same_masks() -> None:
    """The loss is read between forward and backward, so the saved generator state crosses a boundary."""

    def run(recompute: bool) -> list[float]:
        torch.manual_seed(0)
        layer = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3))
        x, y = torch.randn(8, 16), torch.randn(8, 16)
        losses: list[float] = []

        def step() -> None:
            h = checkpoint(layer, x, use_reentrant=False) if recompute else layer(x)
            loss = F.mse_loss(h, y)
            losses.append(loss.item())
            loss.backward()
            with torch.no_grad():
                for p in layer.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None

        wrapped = markstep.compile(step, background=False, rng="hash" if recompute else "torch")
        for i in range(8):
            torch.manual_seed(i)
            wrapped()
        return losses

    plain, again = run(False), run(True)
    torch.testing.assert_close(again, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.compile
def test_layers_that_are_repeated_share_their_kernels(tmp_path: Path) -> None:
    """Each draws from a key of its own; were the key part of the kernel's text, every layer would be compiled anew."""

    def kernels(count: int) -> int:
        torch.manual_seed(0)
        layers = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.3)) for _ in range(count)))
        x = torch.randn(8, 16)

        def step() -> torch.Tensor:
            layers.zero_grad()
            loss = layers(x).square().mean()
            loss.backward()
            return loss.detach()

        folder = tmp_path / str(count)
        wrapped = markstep.compile(step, background=False, cache_dir=folder, passes="all,-repeated_layers")
        for _ in range(4):
            wrapped()
        return len({path.name for path in folder.glob("programs/*/*.so")})

    assert 0 < kernels(3) == kernels(6)
