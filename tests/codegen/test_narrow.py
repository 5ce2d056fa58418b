"""fp32 products of which only a bf16 result is kept are computed in bf16; others are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import only_graph, program_of
from torch import Tensor, nn

import markstep
from markstep.codegen import narrow
from markstep.codegen.inductor import decompositions
from markstep.codegen.lower import Rewrites, build, feed_of

BATCH, LENGTH, WIDTH = 3, 8, 4


def attention(dtype: torch.dtype) -> Callable[[], Any]:
    """Self-attention with dropout under autocast, forward and backward."""
    torch.manual_seed(0)
    x, project = torch.randn(BATCH, LENGTH, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)

    def step() -> Tensor:
        project.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            query, key, value = project(x).view(BATCH, LENGTH, 2, 6).transpose(1, 2).chunk(3, -1)
            out = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=0.25)
        out.float().sin().sum().backward()
        return out.detach()

    return step


def test_attention_with_dropout() -> None:
    """Four of its six products; the scores and the gradients of the probabilities stay in fp32."""
    program = program_of(attention(torch.bfloat16))
    found = narrow.find(program)
    products = [i for i, c in enumerate(program.calls) if c.op.name() == "aten::bmm"]
    assert len(products) == 6 and len(found) == 4 and products[0] not in found
    assert narrow.find(program_of(attention(torch.float32))) == frozenset()

    plan, piece = only_graph(program)
    feed = feed_of(plan, piece)
    torch.manual_seed(1)
    inputs = [torch.randn(m[0], dtype=m[3]) for _, m in feed.tensors]
    drawn = [torch.rand(BATCH, 2, LENGTH, LENGTH).lt(0.75).float() for _ in feed.draws]
    results, kinds = [], []
    for rewrites in (Rewrites(), Rewrites(narrow=found)):
        graph, _ = build(plan, piece, feed, decompositions(), rewrites)
        nodes = [n for n in graph.graph.nodes if n.target is torch.ops.aten.bmm.default]
        kinds.append([n.meta["val"].dtype for n in nodes].count(torch.bfloat16))
        results.append(graph(*(t.clone() for t in (*inputs, *drawn))))
    assert kinds == [0, 4]
    for wide, narrowed in zip(*results, strict=True):
        scale = float(wide.abs().max())
        assert not torch.equal(wide, narrowed)
        torch.testing.assert_close(narrowed, wide, rtol=0, atol=0.02 * scale)


def products(after: Callable[[Tensor], Any], before: Callable[[Tensor], Tensor] = lambda x: x) -> int:
    """How many of two products, one of them with what comes after or before, are found."""
    a, b = torch.randn(2, 3, 3, dtype=torch.bfloat16), torch.randn(2, 3, 3)

    def step() -> Any:
        first = torch.bmm(before(a.float()), b)
        return (first * 2).transpose(1, 2).contiguous().to(torch.bfloat16).clone(), after(torch.bmm(b, a.float()))

    return len(narrow.find(program_of(step)))


def test_what_is_left_alone() -> None:
    def both_ways(x: Tensor) -> Any:
        return x.to(torch.bfloat16).sin(), x.sin()

    assert products(lambda x: x.to(torch.bfloat16).sin()) == 2
    assert products(lambda x: x.sin()) == 1  # used in fp32
    assert products(lambda x: x) == 1  # kept in fp32
    assert products(both_ways) == 1
    assert products(lambda x: x.add_(1).to(torch.bfloat16).sin()) == 1  # changed in between
    assert products(lambda x: x.to(torch.float16).sin()) == 1
    assert products(lambda x: x.to(torch.bfloat16).sin(), before=torch.sin) == 1  # no factor is exact
    assert products(lambda x: x.to(torch.bfloat16).sin(), before=lambda x: x.mul_(1.5)) == 1


@pytest.mark.compile
def test_a_compiled_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from markstep.engine.trial import Trial

    monkeypatch.setattr(Trial, "next", lambda self: "predict")
    step = attention(torch.bfloat16)
    torch.manual_seed(3)
    expected = [step() for _ in range(5)]
    torch.manual_seed(3)
    compiled = markstep.compile(step, rng="torch", background=False)
    ours = [compiled() for _ in range(5)]
    assert any(p.runs for p in markstep.explain().programs)
    torch.testing.assert_close(ours, expected, rtol=0.02, atol=0.02)
