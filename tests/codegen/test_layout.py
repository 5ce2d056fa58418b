"""Images between convolutions have their channels last; nobody outside sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import only_graph, program_of
from torch import Tensor, nn

from markstep.codegen import layout
from markstep.codegen.inductor import decompositions
from markstep.codegen.lower import Rewrites, build, feed_of

_aten = torch.ops.aten


class Network(nn.Module):
    """Convolutions with everything that stands between them in a ResNet."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.between = between
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2, bias=False)
        self.skip = nn.Conv2d(8, 8, 1, stride=2)
        self.norm, self.pool, self.last = nn.BatchNorm2d(8), nn.MaxPool2d(2, 2, 1), nn.Linear(8 * 2 * 2, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.pool(torch.relu_(self.norm(self.first(x))))
        hidden = self.between(hidden)
        return self.last((torch.relu(self.second(hidden)) + self.skip(hidden[..., :-2, :-2])).flatten(1))


kept: list[Tensor] = []


def keep(x: Tensor) -> Tensor:
    kept[:] = [x.detach()]
    return x


BETWEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda x: x,
    "in place": lambda x: x.mul_(0.5).add_(1),
    "a view": lambda x: x.flatten(2).sin().view_as(x),
    "a view that is updated": lambda x: x.clone().flatten(2).add_(1).view_as(x),
    "another order": lambda x: x.transpose(2, 3).contiguous(),
    "weights of channels": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
    "strides": lambda x: x.clone().as_strided((2, 8, 5, 5), (200, 25, 1, 5)).clone(),
    "normalised": lambda x: nn.functional.layer_norm(x, x.shape[1:]),
    "kept": keep,
    "joined": lambda x: torch.cat([x[:, :4], x[:, 4:].tanh()], 1),
    "dropout": lambda x: nn.functional.dropout2d(x, 0.5),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_results_and_their_strides_are_the_same(between: str) -> None:
    torch.manual_seed(0)
    network, x, labels = Network(BETWEEN[between]), torch.randn(2, 3, 8, 8), torch.tensor([1, 3])

    def step() -> Tensor:
        network.zero_grad()
        loss = nn.functional.cross_entropy(network(x), labels)
        loss.backward()
        return loss.detach()

    program = program_of(step)
    plan, piece = only_graph(program)
    free = layout.find(program, piece)
    assert free and free.isdisjoint(program.live)
    feed = feed_of(plan, piece)
    torch.manual_seed(1)
    inputs = [labels if m[3] == torch.int64 and m[0] else torch.rand(m[0]).to(m[3]) for _, m in feed.tensors]
    drawn = [torch.ones(p.meta[0]) for i in feed.draws for p in program.calls[i].args[:1]]
    results, counts = [], []
    for rewrites in (Rewrites(), Rewrites(free=free)):
        graph, _ = build(plan, piece, feed, decompositions(), rewrites)
        own = [t.clone() for t in (*inputs, *drawn)]
        results.append([*graph(*own), *own])
        nodes = [n for n in graph.graph.nodes if n.target is _aten.convolution.default]
        counts.append(sum(n.meta["val"].is_contiguous(memory_format=torch.channels_last) for n in nodes))
    assert counts[0] == 0 and counts[1] >= 2
    for expected, ours in zip(*results, strict=True):
        assert all(n == 1 or a == b for n, a, b in zip(ours.shape, ours.stride(), expected.stride(), strict=True))
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_what_somebody_sees_keeps_its_layout() -> None:
    x, first, second = torch.randn(2, 3, 8, 8), nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

    def step(look: Callable[[Tensor], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with torch.no_grad():
                hidden = first(x).sin()
                return look(hidden), second(hidden).sum()

        return run

    def is_free(look: Callable[[Tensor], Any]) -> bool:
        program = program_of(step(look))
        _, piece = only_graph(program)
        (slot,) = (c.creates[0].slot for c in program.calls if c.op is _aten.sin.default)
        return slot in layout.find(program, piece)

    assert is_free(lambda h: None)
    assert is_free(lambda h: h.cos())
    assert not is_free(lambda h: h)
    assert not is_free(lambda h: h.flatten(1).cos())
    assert not is_free(lambda h: h[0].cos())


def test_without_convolutions_nothing_changes() -> None:
    x, norm = torch.randn(2, 3, 8, 8), nn.BatchNorm2d(3)

    def step() -> None:
        norm.zero_grad()
        norm(x).sin().cos().sum().backward()

    program = program_of(step)
    _, piece = only_graph(program)
    assert layout.find(program, piece) == frozenset()
