"""Training in two processes: equal in both, and equal to PyTorch's own DistributedDataParallel."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.distributed.jobs import run
from torch import nn

import markstep
from markstep.distributed import DataParallel

OPTIONS: dict[str, Any] = {"backend": "interpreter", "rng": "torch"}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b, self.c = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, skip: bool = False) -> torch.Tensor:
        x = torch.relu(self.norm(self.a(x)))
        return self.c(x if skip else torch.relu(self.b(x)))


def train(rank: int, how: str, case: str, steps: int, options: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(rank)  # models start different; rank 0's is taken
    model = Net()
    torch.manual_seed(0)
    # Buckets of a few parameters each.
    os.environ["MARKSTEP"] = "0" if how == "native ddp" else "1"
    wrapped: Any = (
        nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        if how == "ddp"
        else DataParallel(model, bucket_mb=0.001)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scale = 1.0
    losses = []
    before = markstep.explain().compiled_steps

    def step(i: int, micro: int) -> torch.Tensor:
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1000 * rank + 10 * i + micro))
        y = torch.arange(8) % 3
        skip = case == "unused" or (case == "unused on one" and rank == 1)
        return F.cross_entropy(wrapped(x, skip), y) * scale

    def update(i: int) -> torch.Tensor:
        optimizer.zero_grad()
        if case == "accumulate":
            with wrapped.no_sync():
                step(i, 1).backward()
        loss = step(i, 0)
        loss.backward()
        if case == "differs" and rank == 1 and i % 5 == 4:
            loss = loss + torch.zeros(())  # an operator that the other process does not call
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss.detach()

    run_step = markstep.compile(update, **options) if how != "native ddp" else update
    for i in range(steps):
        losses.append(float(run_step(i)))
    compiled = markstep.explain().compiled_steps - before
    return {
        "losses": losses,
        "state": {k: v.clone() for k, v in model.state_dict().items()},
        "compiled": compiled,
        "grads": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "repairs": wrapped._reducer.lockstep.repairs if how == "ours" else 0,
    }


def _same_bits(results: list[dict[str, Any]], *, buffers: bool = False) -> None:
    first = results[0]["state"]
    for other in results[1:]:
        for name, value in first.items():
            if buffers or not name.startswith("norm.") or name in ("norm.weight", "norm.bias"):
                assert torch.equal(value, other["state"][name]), name


CASES = ("plain", "accumulate", "unused", "unused on one")


def train_all(rank: int) -> dict[tuple[str, str], dict[str, Any]]:
    """Everything in one job: starting processes takes longer than training."""
    jobs = [(how, case) for case in CASES for how in ("native ddp", "ours", "ddp")] + [("ours", "differs")]
    return {job: train(rank, *job, 20 if job[1] == "differs" else 12, OPTIONS) for job in jobs}


@pytest.fixture(scope="module")
def trained() -> list[dict[tuple[str, str], dict[str, Any]]]:
    return run(train_all, 2)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("how", ["ours", "ddp"])
def test_as_pytorch_does(how: str, case: str, trained: list[dict[tuple[str, str], dict[str, Any]]]) -> None:
    ours, theirs = [[r[h, case] for r in trained] for h in (how, "native ddp")]
    _same_bits(ours)
    _same_bits(theirs)
    assert all(r["compiled"] >= 6 for r in ours), [r["compiled"] for r in ours]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a["losses"], b["losses"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(a["state"], b["state"], rtol=1e-3, atol=1e-4)
        assert [g is None for g in a["grads"]] == [g is None for g in b["grads"]]


def test_a_process_that_leaves_the_program_is_made_equal_again(trained: list[dict[tuple[str, str], dict[str, Any]]]) -> None:
    results = [r["ours", "differs"] for r in trained]
    _same_bits(results)
    assert results[0]["repairs"] == results[1]["repairs"] > 0


def _hooked(rank: int) -> tuple[list[float], int, list[str]]:
    torch.manual_seed(0)
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(4, 3))
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    ddp.register_comm_hook(None, allreduce_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)

    def update(i: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(ddp(torch.full((3, 4), float(i + rank))), torch.arange(3))
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = markstep.compile(update, **OPTIONS)
    for i in range(6):
        step(i)
    report = markstep.explain()
    return [float(p.detach().sum()) for p in ddp.parameters()], report.compiled_steps, report.warnings


def test_a_communication_hook_is_kept_and_the_step_runs_eagerly() -> None:
    (first, compiled, warnings), (second, _, _) = run(_hooked, 2)
    assert first == second and compiled == 0
    assert len(warnings) == 1 and "DistributedDataParallel" in warnings[0]


@pytest.mark.compile
def test_compiled() -> None:
    options = {"background": False, "rng": "torch"}
    ours = run(train, 2, "ours", "plain", 40, options, limit_s=600)
    theirs = run(train, 2, "native ddp", "plain", 40, options)
    _same_bits(ours)
    assert min(r["compiled"] for r in ours) > 0
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a["losses"][:20], b["losses"][:20], rtol=1e-3, atol=1e-4)
