"""Operators that are not compiled stay calls of the host between compiled graphs; failures leave training eager."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import markstep
from markstep.codegen import jobs
from markstep.codegen.executable import _distinct
from markstep.engine import report
from markstep.engine.trial import Trial

pytestmark = pytest.mark.compile


@pytest.fixture(autouse=True)
def _always_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "next", lambda self: "predict")


@torch.library.custom_op("markstep_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return doubled(grad)


doubled.register_autograd(_backward)


def train(middle: Any, steps: int = 7, **options: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    first, second = (
        nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8)),
        nn.Sequential(nn.Tanh(), nn.Linear(8, 1)),
    )
    parameters = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=0.01, fused=True)
    x, y = torch.randn(7, 6), torch.randn(7, 1)

    def step(i: int) -> torch.Tensor:
        loss = nn.functional.mse_loss(second(middle(first(x), i)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = markstep.compile(step, **options) if options else step
    return [run(i) for i in range(steps)]


def compare(middle: Any, steps: int = 7) -> report.Report:
    want = train(middle, steps)
    got = train(middle, steps, background=False, rng="torch")
    torch.testing.assert_close(torch.stack(got), torch.stack(want), rtol=1e-4, atol=1e-6)
    found = report.current()
    assert any(p.runs for p in found.programs), str(found)
    return found


def test_custom_operator() -> None:
    """The compiling process does not know it, and need not."""
    compare(lambda h, i: doubled(h))


def test_complex_numbers() -> None:
    compare(lambda h, i: torch.fft.irfft(torch.fft.rfft(h) * (0.5 + 0.5j), n=8))


def test_a_number_that_changes_in_an_operator_without_a_rule() -> None:
    compare(lambda h, i: nn.functional.elu(h, alpha=1.0 + 0.1 * i), steps=9)


def test_numbers_that_change_in_arithmetic() -> None:
    found = compare(lambda h, i: (h * (1 + 0.1 * i) + i).clone().div_(1 + i).add(h, alpha=0.5 * i), steps=9)
    assert any(p.scalar_inputs >= 3 and p.runs for p in found.programs), str(found)


def test_integers_booleans_and_empty_tensors() -> None:
    def middle(h: torch.Tensor, i: int) -> torch.Tensor:
        order = h.detach().argsort(1)
        mask = h > 0
        empty = h[:, :0].sum()
        return torch.where(mask, h.gather(1, order), h) + empty + torch.arange(8)

    compare(middle)


def test_views_updated_in_place() -> None:
    def middle(h: torch.Tensor, i: int) -> torch.Tensor:
        out = torch.zeros(7, 8)
        out[:, ::2] = h[:, ::2]
        out.t()[1::2].copy_(h.t()[1::2])
        out.view(-1)[3:11].mul_(2.0)
        return out.as_strided((7, 8), (8, 1)) + h.unfold(1, 4, 4).reshape(7, 8)

    compare(middle)


def test_a_program_that_does_not_compile_stays_eager(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(jobs, "_ask", lambda request: {"error": "RuntimeError: no such compiler", "trace": ""})
    with caplog.at_level(logging.WARNING, logger="markstep"):
        got = train(lambda h, i: h.sinh(), background=False)
    assert torch.equal(torch.stack(got), torch.stack(train(lambda h, i: h.sinh())))
    messages = [r.getMessage() for r in caplog.records]
    assert len([m for m in messages if "stays eager: RuntimeError: no such compiler" in m]) == 1, messages


def test_a_compiling_process_that_dies_leaves_training_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    start = jobs._start

    def dying(cache_dir: Any) -> Any:
        child = start(cache_dir)
        child.kill()
        return child

    jobs.stop()
    monkeypatch.setattr(jobs, "_start", dying)
    got = train(lambda h, i: h.cosh(), background=False)
    assert torch.equal(torch.stack(got), torch.stack(train(lambda h, i: h.cosh())))
    assert "the compiling process ended" in report.current().warnings[-1]


def test_a_scatter_that_reads_its_own_target() -> None:
    def middle(h: torch.Tensor, i: int) -> torch.Tensor:
        out = h.detach().clone()
        out.index_add_(0, torch.tensor([1, 1]), out[:2].clone())
        other = h.detach().exp()
        return h + out + other.index_add(0, torch.tensor([2, 2]), other[1:3] * 2)

    compare(middle)


def test_a_list_that_holds_a_tensor_twice() -> None:
    def middle(h: torch.Tensor, i: int) -> torch.Tensor:
        out = h.detach().clone()
        torch._foreach_add_([out, out[0], out], 1.0)
        return h + out

    compare(middle)


@pytest.mark.parametrize("rng", ["torch", "hash"])
def test_random_numbers_that_are_not_used(rng: str) -> None:
    """With rng="torch" the generator ends where eager execution leaves it."""

    def middle(h: torch.Tensor, i: int) -> torch.Tensor:
        torch.rand(3)
        x = torch.zeros(5).bernoulli_(0.5)
        torch.randint(7, (2,))
        return h * (1 + 0 * x.sum())

    want = train(middle)
    state = torch.get_rng_state()
    got = train(middle, background=False, rng=rng)
    torch.testing.assert_close(torch.stack(got), torch.stack(want), rtol=1e-4, atol=1e-6)
    assert any(p.runs for p in report.current().programs)
    assert rng == "hash" or torch.equal(state, torch.get_rng_state())


def test_random_numbers_that_only_the_host_can_draw() -> None:
    """Where one draw depends on values all are made by the host, in order, and so are changes of the generator's state."""

    def middle(h: torch.Tensor, i: int) -> torch.Tensor:
        state = torch.get_rng_state()
        first = nn.functional.dropout(h, 0.5)
        torch.set_rng_state(state)
        again = nn.functional.dropout(h, 0.5)
        picked = torch.multinomial(torch.softmax(h.detach(), 1), 3)
        return h + (first - again) + h.gather(1, picked).sum() * 0.1

    want = train(middle)
    for rng in ("torch", "hash"):
        got = train(middle, background=False, rng=rng)
        torch.testing.assert_close(torch.stack(got), torch.stack(want), rtol=1e-4, atol=1e-6)


def test_pooling_as_the_first_program_of_a_compiling_process() -> None:
    """Its decomposition uses a module of TorchInductor that it does not import."""
    jobs.stop()
    compare(lambda h, i: nn.functional.max_pool2d(h.view(1, 7, 2, 4).repeat(1, 1, 2, 1), 2).view(7, 4).repeat(1, 2))


def test_a_result_that_is_given_twice() -> None:
    """Equal results may be one buffer of the compiled program; each handle needs data of its own."""
    shared = torch.arange(4.0)
    first, second, third = _distinct([shared, torch.ones(2), shared])
    assert first is shared and third is not shared and torch.equal(third, shared)

    kept: list[torch.Tensor] = []

    def middle(h: torch.Tensor, i: int) -> torch.Tensor:
        a = h.detach().exp()
        kept[:] = [a, a.clone(), h.detach().exp()]
        return h + a

    compare(middle)
    kept[0].zero_()
    assert torch.equal(kept[1], kept[2]) and (kept[1] > 0).all()


def test_where_the_compiling_process_belongs(tmp_path: Path) -> None:
    """In the session of the training: Linux gives each an equal share, whatever its priority. Ctrl-C is for the training."""
    child = jobs._start(tmp_path)
    try:
        assert os.getsid(child.pid) == os.getsid(0)
        assert os.getpgid(child.pid) == child.pid != os.getpgid(0)
    finally:
        jobs._end(child)
