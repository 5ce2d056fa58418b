"""Graphs that repeat themselves are cut into links; together they compute what the whole does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import only_graph, program_of
from torch import Tensor, nn
from torch.fx import GraphModule

import markstep
from markstep.codegen import repeats
from markstep.codegen.inductor import decompositions
from markstep.codegen.lower import build, feed_of


class Block(nn.Module):
    """A layer with what layers have: a norm with running statistics, products, masks, a residual."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = nn.BatchNorm1d(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.outer(torch.nn.functional.gelu(self.inner(self.norm(x)))))


def network(layers: int, dropout: float = 0.2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), *(Block(8, dropout) for _ in range(layers)), nn.Linear(8, 3))


def trainer(layers: int, autocast: bool, dropout: float = 0.2) -> tuple[nn.Sequential, Callable[[], Tensor]]:
    model = network(layers, dropout)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=False)
    x, y = torch.randn(16, 6), torch.randint(3, (16,))

    def step() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step()  # the first one makes the momentum, and is another program
    return model, step


def graph_of(step: Callable[[], Any]) -> tuple[GraphModule, list[Tensor]]:
    plan, piece = only_graph(program_of(step))
    return build(plan, piece, feed_of(plan, piece), decompositions())


def _filled(example: list[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)

    def one(t: Tensor) -> Tensor:
        value = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
        if t.dtype.is_floating_point:
            return value.copy_(torch.rand(t.shape, generator=generator) + 0.1)
        return value.copy_(torch.randint(0, 2, t.shape, generator=generator))

    return [one(t) for t in example]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("layers", [5, 6])
def test_a_chain_computes_what_the_graph_does(layers: int, autocast: bool) -> None:
    graph, example = graph_of(trainer(layers, autocast)[1])
    chain, graphs = repeats.split(graph)
    assert len(chain.links) - len(graphs) >= 2 * (layers - 3), "forward and backward of the layers are there once"
    want_args, got_args = _filled(example), _filled(example)
    want = graph(*want_args)
    kept = list(got_args)
    got = repeats.Chain.from_json(chain.to_json()).runner([lambda args, g=g: g(*args) for g in graphs])(got_args)  # type: ignore[misc]
    assert got_args == [], "arguments are given away, so that their memory can be freed early"
    assert all(map(torch.equal, want, got))
    assert all(map(torch.equal, want_args, kept)), "parameters, momentum and running statistics are updated in place"
    written = sum(not torch.equal(a, b) for a, b in zip(kept, _filled(example), strict=True))
    assert written >= 12 * layers


def test_values_are_dropped_by_the_last_link_that_takes_them() -> None:
    graph, _ = graph_of(trainer(5, False)[1])
    chain, _ = repeats.split(graph)
    arguments = sum(n.op == "placeholder" for n in graph.graph.nodes)
    gone: set[int] = set()
    count = arguments
    for link in chain.links:
        assert gone.isdisjoint(link.inputs) and link.last <= set(link.inputs) and max(link.inputs) < count
        gone |= link.last
        count += link.outputs
    assert gone.isdisjoint(chain.results)
    taken = {i for link in chain.links for i in link.inputs}
    assert taken <= gone | set(chain.results)


def test_masks_and_casts_are_computed_again_and_not_kept() -> None:
    graph, _ = graph_of(trainer(6, True)[1])
    chain, graphs = repeats.split(graph)
    kept = [v for g in graphs for v in g.graph.output_node().args[0]]  # type: ignore[union-attr]
    targets = [str(v.target) for v in kept]  # type: ignore[union-attr]
    assert len(chain.links) > len(graphs)
    assert not any("view" in t or "permute" in t or "expand" in t for t in targets)


def test_without_repetition_a_graph_stays_whole() -> None:
    graph, _ = graph_of(trainer(1, False)[1])
    chain, graphs = repeats.split(graph)
    assert graphs == [graph] and len(chain.links) == 1


@pytest.mark.compile
def test_compiled_once_and_the_same_losses(tmp_path: Path) -> None:
    found = {}
    for passes in ("none", "repeated_layers"):
        torch.manual_seed(3)
        model, step = trainer(6, False)
        run = markstep.compile(step, passes=passes, background=False, cache_dir=tmp_path)
        losses = [float(run()) for _ in range(8)]
        found[passes] = [losses, *(p.detach() for p in model.parameters()), *model.buffers()]
        report = markstep.explain().programs[-1]
        assert report.runs >= 1 and report.state == "ready"
        assert (report.rewrites.get("repeated_layers", 0) >= 6) == (passes != "none")
    torch.testing.assert_close(found["none"], found["repeated_layers"], rtol=1e-4, atol=1e-5)
