"""Attention taken apart computes what PyTorch's operator computes."""

import math
from typing import Any

import pytest
import torch
from tests.helpers import collect_sites
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import markstep
from markstep.codegen import attention
from markstep.codegen.plan import make_plan
from markstep.engine.ending import endings_below
from markstep.record.program import Scalar
from markstep.record.schema import draws

_aten = torch.ops.aten
_FORWARD = _aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = _aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def inputs(dtype: torch.dtype, queries: int, keys: int, size: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As models have them: (batch, length, heads, width), transposed."""
    make = [torch.randn(2, n, 3, 16, dtype=dtype).transpose(1, 2) * size for n in (queries, keys, keys, queries)]
    return make[0], make[1], make[2], make[3]


def truth(query: Tensor, key: Tensor, value: Tensor, grad: Tensor, causal: bool, scale: float | None) -> list[Tensor]:
    """Output, logarithm of the sum, and the three gradients, in double precision."""
    q, k, v = (t.double().requires_grad_() for t in (query, key, value))
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, -math.inf)
    out = scores.softmax(-1) @ v
    grads = torch.autograd.grad(out, (q, k, v), grad.double())
    return [out.detach(), scores.logsumexp(-1).detach(), *grads]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (33, 65), (65, 33), (1, 5)])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("size", [1.0, 5.0])
def test_as_near_to_the_truth_as_the_operator(
    dtype: torch.dtype, causal: bool, queries: int, keys: int, scale: float | None, size: float
) -> None:
    query, key, value, grad = inputs(dtype, queries, keys, size)

    def run(forward: Any, backward: Any) -> list[Tensor]:
        out, logsumexp = forward(query, key, value, 0.0, causal, scale=scale)
        return [out, logsumexp, *backward(grad, query, key, value, out, logsumexp, 0.0, causal, scale=scale)]

    ours, theirs = run(attention._forward, attention._backward), run(_FORWARD, _BACKWARD)
    for i, (mine, other, true) in enumerate(zip(ours, theirs, truth(query, key, value, grad, causal, scale), strict=True)):
        assert mine.dtype == other.dtype and mine.shape == other.shape
        rounding = 8 * torch.finfo(dtype).eps * size ** (1, 2, 3, 3, 1)[i]
        error, their_error = (mine - true).abs().max().item(), (other - true).abs().max().item()
        assert error <= 2 * their_error + rounding, (i, error, their_error, rounding)


@pytest.mark.parametrize(
    ("change", "calls"),
    [({}, 0), ({"dropout_p": 0.1}, 1), ({"masked": True}, 1), ({"keys": 1200}, 1), ({"keys": 0}, 1)],
)
def test_which_calls_stay_one_operator(change: dict[str, Any], calls: int) -> None:
    keys, masked = change.pop("keys", 5), change.pop("masked", False)
    query, key, value, _ = inputs(torch.float32, 5, keys)

    def call(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Any:
        return _FORWARD(q, k, v, attn_mask=mask if masked else None, **change)[0]

    graph = make_fx(call, attention.decompositions(), tracing_mode="fake")(query, key, value, torch.zeros(1, 1, 5, keys))
    assert sum(node.target is _FORWARD for node in graph.graph.nodes) == calls


def test_rows_without_keys_that_count() -> None:
    """With a causal mask every row sees at least the first key, so nothing is divided by zero."""
    query, key, value, _ = inputs(torch.float32, 9, 2)
    ours, logsumexp = attention._forward(query, key, value, 0.0, True)
    assert bool(ours.isfinite().all()) and bool((logsumexp > -math.inf).all())


@pytest.mark.parametrize("rng", ["hash", "torch"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_that_drops_nothing_is_no_draw(rng: str, dropout: float) -> None:
    """It does not cut the graph; what is told to drop something may stay a call of the host."""
    query = torch.randn(2, 3, 8, 16, requires_grad=True)

    def step() -> None:
        hidden = (query.sin() * 2 + torch.rand(())).relu()
        out = torch.nn.functional.scaled_dot_product_attention(hidden, hidden, hidden, dropout_p=dropout)
        ((out.tanh() * 3).cos().exp()).sum().backward()
        query.grad = None

    with collect_sites() as sites:
        followed = markstep.compile(step, backend="interpreter", rng="torch")
        for _ in range(4):
            followed()
    programs = [ending.program() for site in sites for ending in endings_below(site.root)]
    (program,) = programs
    calls = [c for c in program.calls if c.op.name().startswith("aten::_scaled_dot_product_flash")]
    assert len(calls) == (2 if dropout == 0.0 else 0)
    assert not any(draws(c.op, c.args, c.kwargs) for c in calls)
    if dropout == 0.0:
        assert [piece.graph for piece in make_plan(program, rng).pieces] == [True]


def test_what_draws() -> None:
    dropping = _aten._scaled_dot_product_flash_attention.default
    assert not draws(_FORWARD, (None, None, None), {})
    assert not draws(_FORWARD, (None, None, None, 0.0), {})
    assert draws(dropping, (None, None, None, 0.1), {})
    assert draws(dropping, (None, None, None), {"dropout_p": Scalar(float)})
    assert draws(_aten.bernoulli_.float, (None, 0.5), {})
    assert not draws(_aten.add.Tensor, (None, None), {})
