"""Expected calls are matched on the dispatcher's stack; Python hears of those only that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers import EXACT

import markstep
from markstep.engine.engine import Mode

Case = Callable[[torch.Tensor, int], Any]


def _in_place(x: torch.Tensor, i: int) -> Any:
    y = x.clone()
    z = y.mul_(0.5).add_(x, alpha=2)
    assert z is y
    return z, y._version


def _lists(x: torch.Tensor, i: int) -> Any:
    parts = list(torch.split(x, [1, 3]))
    copies = torch._foreach_mul(parts, 2.0)
    torch._foreach_add_(copies, parts, alpha=3)
    return *copies, torch.cat(copies), torch.stack([x, x]), torch.linalg.vector_norm(x, 2.0)


def _constants(x: torch.Tensor, i: int) -> Any:
    made = torch.zeros(4, 4, dtype=torch.float64, device="cpu")
    return (
        made + x,
        x.to(torch.bfloat16),
        x.new_full((2,), 7),
        x.contiguous(memory_format=torch.contiguous_format),
        torch.ones_like(x),
    )


def _numbers(x: torch.Tensor, i: int) -> Any:
    return x * 0.5, x * 2, x * True, 2.0**x, torch.where(x > 0, x, -1.0), x.clamp(min=-0.0), x / -0.0


def _changing_numbers(x: torch.Tensor, i: int) -> Any:
    return x * (0.5 + i), torch.add(x, x, alpha=1.0 + i), x.clone().lerp_(x, 1.0 / (1 + i))


def _views(x: torch.Tensor, i: int) -> Any:
    return x.t(), x[1:].sum(), x.view(2, 8).unbind(0), x.expand(3, 4, 4), x.unsqueeze(-1).squeeze(-1)


def _several_results(x: torch.Tensor, i: int) -> Any:
    norm = F.layer_norm(x, (4,))
    attention = F.scaled_dot_product_attention(x.view(1, 1, 4, 4), x.view(1, 1, 4, 4), x.view(1, 1, 4, 4))
    return *torch.max(x, 1), *torch.var_mean(x, 1), norm, attention, F.max_pool2d(x.view(1, 1, 4, 4), 2, return_indices=True)[1]


def _optional_tensors(x: torch.Tensor, i: int) -> Any:
    image = x.view(1, 1, 4, 4)
    chosen = x.clone()
    chosen[:, torch.tensor([0, 2])] = 1.0
    return F.conv2d(image, image[:, :, :2, :2].clone()), F.batch_norm(image, None, None, training=True), chosen


def _backward(x: torch.Tensor, i: int) -> Any:
    w = x.clone().requires_grad_()
    F.cross_entropy(F.gelu(w @ w.t(), approximate="tanh"), torch.tensor([0, 1, 2, 3])).backward()
    assert w.grad is not None
    return w.grad


CASES: list[Case] = [
    _in_place, _lists, _constants, _numbers, _changing_numbers, _views, _several_results, _optional_tensors, _backward
]  # fmt: skip


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    calls: list[str] = []
    original = Mode.__torch_dispatch__

    def counting(self: Mode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        calls.append(func.name())
        return original(self, func, types, args, kwargs)

    monkeypatch.setattr(Mode, "__torch_dispatch__", counting)
    yield calls


def _flat(value: Any) -> list[Any]:
    return [v for part in value for v in _flat(part)] if isinstance(value, tuple | list) else [value]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__.strip("_"))
def test_an_expected_step_is_followed_without_python(case: Case, heard: list[str]) -> None:
    for i in range(7):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(i))
        expected = _flat(case(x.clone(), i))
        heard.clear()
        with markstep.step(**EXACT):
            got = _flat(case(x, i))
            inside = list(heard)
        assert len(got) == len(expected)
        for g, e in zip(got, expected, strict=True):
            if isinstance(e, torch.Tensor):
                assert g.stride() == e.stride()
                torch.testing.assert_close(g, e, rtol=0, atol=0)
                assert torch.equal(g.signbit(), e.signbit())
            else:
                assert g == e
        if i == 0:
            assert inside, "recording is Python's"
    assert not inside


def test_a_call_that_differs_is_heard(heard: list[str]) -> None:
    x = torch.ones(4)
    for i in range(6):
        heard.clear()
        with markstep.step(**EXACT):
            y = x * 2.0 if i < 5 else x * 2
            z = y + 1
    assert "aten::mul.Tensor" in heard and torch.equal(z, torch.full((4,), 3.0))
