"""The products of a step, timed alone. Nothing about time is asserted."""

from typing import Any

import pytest
import torch
from bench.floor import Convolution, Product, floor, products_of, record
from bench.models import CASES

F32 = torch.float32


def products(name: str, dtype: str = "fp32") -> dict[Any, int]:
    found, unknown = products_of(record(CASES[name].tiny(), dtype, "cpu"))
    assert not unknown
    return dict(found)


def flops(found: dict[Any, int]) -> int:
    return sum(2 * count * p.batch * p.m * p.k * p.n for p, count in found.items())


def test_products_of_a_multi_layer_perceptron() -> None:
    assert products("mlp") == {
        Product(1, 2, 64, 16, F32): 1,  # forward
        Product(1, 2, 16, 16, F32): 2,  # the second layer and the gradient of its input
        Product(1, 2, 16, 10, F32): 1,
        Product(1, 2, 10, 16, F32): 1,
        Product(1, 16, 2, 64, F32): 1,  # gradients of weights
        Product(1, 16, 2, 16, F32): 1,
        Product(1, 10, 2, 16, F32): 1,
    }


def test_products_of_attention_are_counted_whichever_operator_does_it() -> None:
    """With dropout PyTorch takes attention apart, without it one operator does it."""
    apart, together = products("gpt2", "bf16"), products("gpt2-nodrop", "bf16")
    assert flops(apart) == flops(together) > 0
    assert {p.dtype for p in together} == {torch.bfloat16}


def test_products_of_a_recurrent_layer() -> None:
    """Two layers of 8 units, 8 steps of 2 examples: 32 gates."""
    found = products("lstm")
    assert found[Product(1, 2, 8, 32, F32)] == 2 * 8
    assert found[Product(1, 2, 32, 8, F32)] == 2 * 8


def test_convolutions_and_their_gradients() -> None:
    found = products("resnet-50")
    forward = sum(count for p, count in found.items() if isinstance(p, Convolution) and p.grads is None)
    backward = sum(count for p, count in found.items() if isinstance(p, Convolution) and p.grads is not None)
    assert forward == backward == 53


@pytest.mark.parametrize("name", ["resnet-50", "gpt2-nodrop"])
def test_floor(name: str) -> None:
    figures = floor(CASES[name].tiny(), "bf16", "cpu")
    assert figures["products_ms"] > 0 and figures["bytes_ms"] > 0
    assert figures["floor_ms"] == pytest.approx(figures["products_ms"] + figures["bytes_ms"])
    assert figures["not_timed"] == []
    assert len(figures["dearest"]) == 12
