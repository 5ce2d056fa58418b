"""A linear layer with cross-entropy in one operator: against PyTorch, and where it may take the place of the recorded calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import only_graph, program_of
from torch import Tensor, nn

import markstep
from markstep.codegen import head
from markstep.codegen.inductor import decompositions
from markstep.codegen.lower import Rewrites, build, feed_of
from markstep.engine.options import resolve
from markstep.engine.trial import Trial
from markstep.record import native

ROWS, FEATURES, CLASSES = 24, 12, 70
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}


@pytest.fixture(params=["ours", "PyTorch's operators"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of making gradients of logits."""
    module = native.load(resolve({}).prepared_cache_dir())
    monkeypatch.setattr(native, "_module", module if request.param == "ours" else None)
    return str(request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ignored", [0.0, 0.03, 0.6, 1.0])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("blocks", [1, 3])
def test_the_operator(
    kernel: str, dtype: torch.dtype, ignored: float, reduction: str, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(ROWS, FEATURES, dtype=dtype, requires_grad=True)
    weight = torch.randn(CLASSES, FEATURES, dtype=dtype, requires_grad=True)
    bias = torch.randn(CLASSES, dtype=dtype, requires_grad=True)
    labels = torch.randint(0, CLASSES, (ROWS,))
    labels[: round(ignored * ROWS)] = -100
    logits = nn.functional.linear(hidden, weight, bias).float()
    expected = nn.functional.cross_entropy(logits, labels, reduction=reduction)
    expected.backward()

    if blocks > 1:
        monkeypatch.setattr(head, "_BLOCK", -(-ROWS // blocks) * CLASSES * weight.element_size())
    inputs = (hidden.detach(), weight.detach(), bias.detach())
    loss, count, *gradients = torch.ops.markstep.loss_head(*inputs, labels, 1 if reduction == "mean" else 2, -100, [True] * 3)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-6, equal_nan=True)
    assert count == int((labels != -100).sum())
    for ours, tensor in zip(gradients, (hidden, weight, bias), strict=True):
        assert tensor.grad is not None and ours.dtype == dtype and ours.shape == tensor.shape
        scale = float(tensor.grad.abs().max())
        torch.testing.assert_close(ours, tensor.grad, rtol=0, atol=TOLERANCE[dtype] * max(scale, 1e-30))


def test_wide_and_extreme_rows(kernel: str) -> None:
    """More classes than a vector has lanes, a remainder, and logits that overflow without the largest taken off."""
    for classes in (1, 31, 32, 33, 95, 1000):
        for dtype in (torch.float32, torch.bfloat16):
            weight = torch.linspace(-300, 300, classes, dtype=dtype)[:, None].contiguous()
            hidden, labels = torch.ones(2, 1, dtype=dtype), torch.tensor([0, classes - 1])
            leaf = weight.clone().requires_grad_()
            expected = nn.functional.cross_entropy((hidden @ leaf.T).float(), labels)
            expected.backward()
            loss, _, _, gradient, _ = torch.ops.markstep.loss_head(hidden, weight, None, labels, 1, -100, [True, True, False])
            torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-6)
            assert leaf.grad is not None
            torch.testing.assert_close(gradient, leaf.grad, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-6)


def test_what_is_not_a_number_stays_so(kernel: str) -> None:
    for value in (float("nan"), float("inf")):
        for dtype in (torch.float32, torch.bfloat16):
            hidden, weight = torch.tensor([[value], [1.0]], dtype=dtype), torch.ones(40, 1, dtype=dtype)
            labels = torch.tensor([3, 4])
            loss, _, gradient, *_ = torch.ops.markstep.loss_head(hidden, weight, None, labels, 1, -100, [True, True, False])
            assert bool(loss.isnan()) and bool(gradient[0].isnan()) and bool(gradient[1].isfinite())


@pytest.mark.parametrize("label", [-1, CLASSES])
def test_a_label_that_is_no_class_is_an_error(kernel: str, label: int) -> None:
    labels = torch.zeros(ROWS, dtype=torch.int64)
    labels[3], labels[5:] = label, -100
    with pytest.raises(IndexError, match=f"Target {label} is out of bounds"):
        torch.ops.markstep.loss_head(
            torch.ones(ROWS, FEATURES), torch.ones(CLASSES, FEATURES), None, labels, 1, -100, [True, True, False]
        )


class Language(nn.Module):
    """Features, a layer in front, and a head."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.body = nn.Linear(FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES, bias=bias)


def _step(
    model: Language,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    *,
    dtype: torch.dtype = torch.float32,
    shape: tuple[int, ...] = (ROWS, FEATURES),
    transposed: bool = False,
    between: Callable[[Tensor], None] = lambda _: None,
) -> Callable[[], Any]:
    inputs, labels = torch.randn(shape), torch.randint(0, CLASSES, shape[:-1])
    labels.view(-1)[::3] = -100

    def step() -> None:
        model.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            hidden = model.body(inputs)
            if transposed:
                hidden = hidden.mT.contiguous().mT
            logits = model.head(hidden)
            loss = loss_of(logits.flatten(0, -2), labels.flatten())
        between(logits)
        loss.backward()

    return step


def _heads(step: Callable[[], Any]) -> tuple[Any, Any, list[head.Head]]:
    plan, piece = only_graph(program_of(step))
    return plan, piece, head.find(plan.program, piece)


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "_FEWEST", 1)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, labels)


ACCEPTED: dict[str, dict[str, Any]] = {
    "plain": {},
    "sum": {"loss_of": lambda x, y: nn.functional.cross_entropy(x, y, reduction="sum")},
    "scaled": {"loss_of": lambda x, y: cross_entropy(x, y) / 4},
    "other ignored label": {
        "loss_of": lambda x, y: nn.functional.cross_entropy(x, y, ignore_index=5) if (y := y.clamp(min=0)) is not None else x
    },
    "cast by hand": {"loss_of": lambda x, y: cross_entropy(x.float(), y)},
    "three dimensions": {"shape": (4, 6, FEATURES)},
    "transposed activations": {"shape": (4, 6, FEATURES), "transposed": True},
    "bf16": {"dtype": torch.bfloat16},
    "bf16, transposed activations": {"dtype": torch.bfloat16, "shape": (4, 6, FEATURES), "transposed": True},
}


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("case", ACCEPTED)
def test_it_takes_the_place_of_the_recorded_calls(case: str, bias: bool) -> None:
    torch.manual_seed(0)
    plan, piece, heads = _heads(_step(Language(bias), **{"loss_of": cross_entropy, **ACCEPTED[case]}))
    assert len(heads) == 1 and [i is not None for i in heads[0].gradients] == [True, True, bias]
    assert (heads[0].grad is None) == (case != "scaled")

    feed = feed_of(plan, piece)
    torch.manual_seed(1)
    inputs = [
        torch.randint(-1, CLASSES, m[0]).mul(2).clamp(-100, CLASSES - 1).masked_fill_(torch.rand(m[0]) < 0.3, -100)
        if m[3] == torch.int64
        else torch.randn(m[0], dtype=m[3])
        for _, m in feed.tensors
    ]
    inputs = [
        t.clamp_(min=0) if case == "other ignored label" and t.dtype == torch.int64 else t.masked_fill(t == -2, 1) for t in inputs
    ]
    outcomes = []
    for given in ([], heads):
        graph, _ = build(plan, piece, feed, decompositions(), Rewrites(given))
        used = any(n.target is torch.ops.markstep.loss_head.default for n in graph.graph.nodes)
        assert used == bool(given)
        own = [t.clone() for t in inputs]
        outcomes.append([*graph(*own), *own])
    tolerance = 1e-5 if ACCEPTED[case].get("dtype") is None else 2e-2
    for expected, ours in zip(*outcomes, strict=True):
        torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


keep: list[Tensor] = []
REFUSED: dict[str, dict[str, Any]] = {
    "logits are kept": {"between": lambda logits: keep.__setitem__(slice(None), [logits])},
    "logits are used": {"between": lambda logits: keep.__setitem__(slice(None), [logits.detach().sum()])},
    "class weights": {"loss_of": lambda x, y: nn.functional.cross_entropy(x, y, weight=torch.ones(CLASSES))},
    "label smoothing": {"loss_of": lambda x, y: nn.functional.cross_entropy(x, y, label_smoothing=0.1)},
    "no reduction": {"loss_of": lambda x, y: nn.functional.cross_entropy(x, y, reduction="none").sum()},
    "scaled logits": {"loss_of": lambda x, y: cross_entropy(x * 2, y)},
    "two losses": {"loss_of": lambda x, y: cross_entropy(x, y) + cross_entropy(x, y)},
    "fp16": {"dtype": torch.float16},
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_leaves_other_heads_alone(case: str) -> None:
    step = _step(Language(True), **{"loss_of": cross_entropy, **REFUSED[case]})
    assert _heads(step)[2] == []


def test_it_leaves_small_heads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "_FEWEST", ROWS * CLASSES + 1)
    assert _heads(_step(Language(True), cross_entropy))[2] == []


@pytest.mark.compile
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_compiled_model_learns_the_same(dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large enough to be used; the switch takes it away."""
    monkeypatch.setattr(Trial, "next", lambda self: "predict")
    rows, classes, steps = 64, 16500, 8
    finals = []
    for options in (None, {"passes": "all"}, {"passes": "none"}):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(50, 8), nn.LayerNorm(8), nn.Linear(8, classes))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
        tokens = torch.randint(0, 50, (steps, rows))
        labels = torch.randint(0, classes, (steps, rows)).masked_fill(torch.rand(steps, rows) < 0.8, -100)

        def step(x: Tensor, y: Tensor, model: Any = model, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        cache = tmp_path / (options or {"passes": "eager"})["passes"]
        run = step if options is None else markstep.compile(step, background=False, cache_dir=cache, **options)
        finals.append([[run(x, y) for x, y in zip(tokens, labels, strict=True)], list(model.parameters())])
        sources = "".join(p.read_text() for p in cache.glob("programs/*/piece*.py"))
        assert ("loss_head" in sources) == (options == {"passes": "all"})
        if options is not None:
            assert markstep.explain().programs[-1].rewrites == ({"loss_head": 1} if options["passes"] == "all" else {})
            assert ("rewritten: 1 x loss_head" in str(markstep.explain())) or options["passes"] == "none"
        if options == {"passes": "all"}:
            before = [p.clone() for p in model.parameters()]
            with pytest.raises(IndexError, match=f"Target {classes} is out of bounds"):
                run(tokens[0], torch.full((rows,), classes))
            assert all(map(torch.equal, before, model.parameters())), "the step that failed has changed nothing"
            assert bool(run(tokens[0], labels[0]).isfinite())
            finals[-1][1] = before
    for losses, parameters in finals[1:]:
        tolerance = 1e-5 if dtype == torch.float32 else 5e-3
        torch.testing.assert_close(losses, finals[0][0], rtol=tolerance, atol=0)
        for ours, theirs in zip(parameters, finals[0][1], strict=True):
            assert float((ours - theirs).detach().abs().mean()) < (1e-5 if dtype == torch.float32 else 1e-3)
