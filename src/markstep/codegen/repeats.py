"""Cuts a graph where it repeats itself, so that a layer that a model has twelve times is compiled once.

The graph of a whole step holds every layer twice, forward and backward. Where the same operators follow each other with a
fixed period, it is cut into links of one period each, at the place of the period that the fewest bytes cross; links that come
out the same are compiled once. What a link takes from earlier ones is cheap to take: what feeds a matrix product or comes out of
one lies in memory anyway, and whatever is pointwise on top of that (casts, masks, activations) is computed again where it
is used, as the compiler would have done inside one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from markstep.record.schema import facts

_MIN_PERIOD = 16
_MIN_SAVED = 48
_MAX_CONE = 40
_NEGLIGIBLE = 16  # so many times smaller than what is computed from it: keys of masks, statistics of rows


@dataclass(frozen=True)
class Link:
    """A part of a chain.

    Attributes:
        module: which of the chain's graphs.
        inputs: numbers of the values it takes: first the arguments of the chain, then every link's results.
        outputs: how many results it adds.
        last: those of `inputs` that nobody needs later.
    """

    module: int
    inputs: tuple[int, ...]
    outputs: int
    last: frozenset[int]


@dataclass(frozen=True)
class Chain:
    """How a graph is put together from others.

    Attributes:
        results: numbers of the values that the whole gives.
    """

    links: tuple[Link, ...]
    results: tuple[int, ...]

    def to_json(self) -> Any:
        """Lists and numbers, for `from_json`."""
        links = [(k.module, k.inputs, k.outputs, sorted(k.last)) for k in self.links]
        return {"links": links, "results": self.results}

    @staticmethod
    def from_json(data: Any) -> Chain:
        """The chain that `to_json` wrote down."""
        links = (Link(module, tuple(inputs), outputs, frozenset(last)) for module, inputs, outputs, last in data["links"])
        return Chain(tuple(links), tuple(data["results"]))

    def runner(self, calls: Sequence[Callable[[list[Tensor]], Any]]) -> Callable[[list[Tensor]], list[Tensor]]:
        """The function of the whole, from those of its graphs; empties the list of its arguments."""

        def run(args: list[Tensor]) -> list[Tensor]:
            values: list[Any] = list(args)
            args.clear()
            for link in self.links:
                inputs = [values[i] for i in link.inputs]
                for i in link.last:
                    values[i] = None
                values.extend(calls[link.module](inputs))
            return [values[i] for i in self.results]

        return run


def uncut(graph: GraphModule) -> tuple[Chain, list[GraphModule]]:
    """The chain of one link."""
    count = sum(n.op == "placeholder" for n in graph.graph.nodes)
    results = len(graph.graph.output_node().args[0])  # type: ignore[arg-type]
    link = Link(0, tuple(range(count)), results, frozenset(range(count)))
    return Chain((link,), tuple(range(count, count + results))), [graph]


def split(graph: GraphModule) -> tuple[Chain, list[GraphModule]]:
    """The chain that computes what `graph` does, and the graphs it is made of, each one once."""
    nodes = list(graph.graph.nodes)
    body = [n for n in nodes if n.op == "call_function"]
    written = [n.args[0] for n in body if _writes(n)]
    if any(n.op not in ("placeholder", "call_function", "output") for n in nodes) or any(n.op != "placeholder" for n in written):
        return uncut(graph)
    pure = [n for n in body if not _writes(n)]
    cuts = sorted({cut for run in _runs(pure) for cut in _cuts(pure, *run)})
    if not cuts:
        return uncut(graph)
    splitter = _Splitter(graph, pure, cuts)
    splitter.split()
    if any(all(map(_is_view, part.nodes)) for part in splitter.parts if part.nodes):
        return uncut(graph)  # TorchInductor makes no source of a graph that computes nothing
    return splitter.chain()


def _writes(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and facts(node.target).mutates


def _is_view(node: Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return facts(node.target).view or node.target.name() == "aten::_unsafe_view"


def _is_pointwise(node: Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in node.target.tags or node.target.name() in _CREATORS


_CREATORS = {
    "aten::full", "aten::arange", "aten::arange.start", "aten::arange.start_step", "prims::iota", "prims::convert_element_type",
    "aten::_to_copy", "aten::scalar_tensor", "aten::full_like", "aten::zeros_like", "aten::ones_like", "aten::clone",
}  # fmt: skip
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "loss_head")


def _is_product(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._opname in _PRODUCTS


def _meta(node: Node) -> Any:
    value = node.meta.get("val")
    if isinstance(value, Tensor):
        return (tuple(value.shape), tuple(value.stride()), value.storage_offset(), value.dtype, str(value.device))
    return tuple(map(repr, value)) if isinstance(value, (list, tuple)) else type(value)


def _bytes(node: Node) -> int:
    value = node.meta.get("val")
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0


def _token(node: Node) -> Any:
    """What a node does, apart from where its operands come from."""
    operands = [_meta(n) for n in node.all_input_nodes]
    constants = torch.fx.map_arg((node.args, node.kwargs), lambda n: "operand")
    return (node.target, repr(constants), repr(operands), repr(_meta(node)))


def _runs(nodes: list[Node]) -> list[tuple[int, int, int]]:
    """(start, period, length) of stretches where every node does the same as the one a period before, none overlapping."""
    numbers: dict[Any, int] = {}
    tokens = np.array([numbers.setdefault(_token(n), len(numbers)) for n in nodes])
    products = np.cumsum([0, *map(_is_product, nodes)])
    found: list[tuple[int, int, int]] = []
    for period in range(_MIN_PERIOD, len(nodes) // 2 + 1):
        same = np.flatnonzero(np.diff(np.concatenate(([0], (tokens[:-period] == tokens[period:]).astype(np.int8), [0]))))
        for start, end in zip(same[::2].tolist(), same[1::2].tolist(), strict=True):
            if end - start >= period and products[start + period] > products[start]:
                found.append((start, period, end - start + period))
    chosen: list[tuple[int, int, int]] = []
    while found:
        best = max(found, key=lambda run: (_saved(run), -run[1]))
        if _saved(best) < _MIN_SAVED:
            break
        chosen.append(best)
        low, high = best[0], best[0] + best[2]
        found = [run for other in found for run in _outside(other, low, high)]
    return chosen


def _saved(run: tuple[int, int, int]) -> int:
    _, period, length = run
    return (length // period - 1) * period


def _outside(run: tuple[int, int, int], low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """What is left of a run on either side of [low, high)."""
    start, period, length = run
    for begin, end in ((start, min(start + length, low)), (max(start, high), start + length)):
        if end - begin >= 2 * period:
            yield begin, period, end - begin


def _cuts(nodes: list[Node], start: int, period: int, length: int) -> range:
    """Places to cut a run at, before each node with these numbers; of all offsets the one where least crosses."""
    place = {n: i for i, n in enumerate(nodes)}
    middle = start + length // period // 2 * period

    def crossing(offset: int) -> int:
        cut = middle + offset
        near = (n for n in nodes[max(cut - period, 0) : cut] if not _is_view(n))
        return sum(_bytes(n) for n in near if any(cut <= place.get(u, -1) < cut + period for u in _users(n)))

    best = min(range(min(period, length - 2 * period + 1)), key=crossing)
    return range(start + best, start + length + 1, period)


def _users(node: Node) -> Iterator[Node]:
    """Who uses a value, directly or through a view."""
    for user in node.users:
        yield user
        if _is_view(user):
            yield from _users(user)


@dataclass
class _Part:
    """A link in the making.

    Attributes:
        nodes: what it computes.
        imports: values of others that it takes, in order.
        exports: its own values that others take, in order.
    """

    nodes: list[Node] = field(default_factory=list)
    imports: dict[Node, None] = field(default_factory=dict)
    exports: list[Node] = field(default_factory=list)

    def prune(self, order: dict[Node, int]) -> None:
        """Leaves out what nobody needs, and puts what is left in order: imports as they are used first."""
        own = set(self.nodes)
        live: set[Node] = set()
        todo = [*self.exports, *(n for n in self.nodes if _writes(n))]
        while todo:
            node = todo.pop()
            if node in own and node not in live:
                live.add(node)
                todo += node.all_input_nodes
        self.nodes = sorted(live, key=order.__getitem__)
        self.imports = {a: None for n in self.nodes for a in n.all_input_nodes if a not in own}


class _Splitter:
    def __init__(self, graph: GraphModule, pure: list[Node], cuts: list[int]) -> None:
        self.graph = graph
        self.order = {n: i for i, n in enumerate(graph.graph.nodes)}
        self.placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
        self.results: list[Node] = list(graph.graph.output_node().args[0])  # type: ignore[arg-type]
        given = set(self.results)
        self.part_of: dict[Node, int] = {}
        number = 0
        for i, node in enumerate(pure):
            while number < len(cuts) and i >= cuts[number]:
                number += 1
            owner = node.args[0] if node.target is getitem else node
            self.part_of[node] = self.part_of[owner] if owner is not node else number  # type: ignore[index]
        self.parts = [_Part() for _ in range(len(cuts) + 1)]
        for node, number in self.part_of.items():
            self.parts[number].nodes.append(node)
        self.stored = {*self.placeholders, *given.intersection(self.part_of), *filter(self._is_stored, self.part_of)}

    def _is_stored(self, node: Node) -> bool:
        """Does a value lie in memory in any case?"""
        if _is_view(node):
            return False
        return not _is_pointwise(node) or self._is_needed_in_memory(node, self.part_of[node])

    def split(self) -> None:
        """Decides what every part computes, takes and gives."""
        for number, part in enumerate(self.parts):
            self._import(number, part)
        self._place_writes()
        needed = {n: None for n in self.results if n.op != "placeholder"}
        for number in reversed(range(len(self.parts))):
            part = self.parts[number]
            part.exports = [n for n in needed if self.part_of[n] == number]
            part.exports.sort(key=self.order.__getitem__)
            part.prune(self.order)
            assert all(n.op == "placeholder" or self.part_of[n] < number for n in part.imports)
            needed.update((n, None) for n in part.imports if n.op != "placeholder")

    def _import(self, number: int, part: _Part) -> None:
        """Decides for every value from outside whether it is taken or computed again."""
        own = set(part.nodes)
        wanted = sorted({a for n in part.nodes for a in n.all_input_nodes if a not in own}, key=self.order.__getitem__)
        # What products take is taken as it is; the rest is decided afterwards, when that is known to be there.
        wanted.sort(key=lambda n: not self._is_needed_in_memory(n, number))
        for node in wanted:
            self._take(node, number, part, own)

    def _is_needed_in_memory(self, node: Node, number: int) -> bool:
        return any(self.part_of.get(u) == number and _takes_memory(u) for u in _users(node))

    def _take(self, node: Node, number: int, part: _Part, own: set[Node]) -> None:
        if node in own or node in part.imports:
            return
        if _is_view(node):
            self._again(node, number, part, own)
        elif self._is_needed_in_memory(node, number) or not self._is_cheap(node, part, own):
            part.imports[node] = None
        else:
            self._again(node, number, part, own)

    def _again(self, node: Node, number: int, part: _Part, own: set[Node]) -> None:
        own.add(node)
        part.nodes.append(node)
        for operand in node.all_input_nodes:
            if operand in own or operand in part.imports:
                continue
            if operand in self.stored:
                part.imports[operand] = None
            elif _is_view(node):
                self._take(operand, number, part, own)
            else:
                self._again(operand, number, part, own)

    def _is_cheap(self, node: Node, part: _Part, own: set[Node]) -> bool:
        """Is a value better computed again: pointwise from values in memory that are no larger?"""
        if node in self.stored:
            return False
        cone: set[Node] = set()
        leaves: set[Node] = set()
        todo = [node]
        while todo:
            current = todo.pop()
            if current in cone or current in own:
                continue
            if current in self.stored or current in part.imports:
                leaves.add(current)
                continue
            if not (_is_pointwise(current) or _is_view(current)):
                return False
            cone.add(current)
            todo += current.all_input_nodes
        size = _bytes(node)
        extra = sum(b for leaf in leaves if leaf not in part.imports and (b := _bytes(leaf)) * _NEGLIGIBLE > size)
        return len(cone) <= _MAX_CONE and extra <= size

    def _place_writes(self) -> None:
        """Updates of arguments come as soon as the new value is there and nobody needs the old one any more."""
        for node in self.graph.graph.nodes:
            if node.op != "call_function" or not _writes(node):
                continue
            target = node.args[0]
            readers = [i for i, part in enumerate(self.parts) if target in part.imports]
            made = [self.part_of[a] for a in node.all_input_nodes if a.op != "placeholder"]
            number = max([*readers, *made], default=0)
            part = self.parts[number]
            part.nodes.append(node)
            self.part_of[node] = number
            for operand in node.all_input_nodes:
                if operand not in part.nodes:
                    part.imports[operand] = None

    def chain(self) -> tuple[Chain, list[GraphModule]]:
        """The chain of all parts, and their graphs, each one once."""
        numbers = {n: i for i, n in enumerate(self.placeholders)}
        modules: list[GraphModule] = []
        known: dict[str, int] = {}
        links: list[tuple[int, tuple[int, ...], int]] = []
        for part in self.parts:
            if not part.nodes:
                continue
            module, text = _module(part)
            if text not in known:
                known[text] = len(modules)
                modules.append(module)
            inputs = tuple(numbers[n] for n in part.imports)
            for node in part.exports:
                numbers[node] = len(numbers)
            links.append((known[text], inputs, len(part.exports)))
        results = tuple(numbers[n] for n in self.results)
        needed = set(results)
        finished: list[Link] = []
        for which, inputs, outputs in reversed(links):
            last = frozenset(set(inputs) - needed)
            needed |= last
            finished.append(Link(which, inputs, outputs, last))
        return Chain(tuple(reversed(finished)), results), modules


def _takes_memory(node: Node) -> bool:
    """Does an operator take tensors in memory, so that nothing can be computed inside of it?"""
    return node.op == "call_function" and not _is_pointwise(node) and not _is_view(node) and not _is_reduction(node)


def _is_reduction(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._opname in _REDUCTIONS


_REDUCTIONS = {"sum", "mean", "amax", "amin", "var_mean", "var", "any", "all", "max", "min", "prod", "argmax", "argmin", "cumsum"}


def _module(part: _Part) -> tuple[GraphModule, str]:
    """A graph of its own, and a text that is the same for graphs that do the same."""
    graph = Graph()
    made: dict[Node, Node] = {}
    lines = []
    for i, node in enumerate(part.imports):
        made[node] = graph.placeholder(f"arg{i}_1")
        made[node].meta["val"] = node.meta["val"]
        lines.append(f"{made[node].name}: {_meta(node)}")
    for i, node in enumerate(part.nodes):
        made[node] = graph.create_node(
            "call_function",
            node.target,
            *torch.fx.map_arg((node.args, node.kwargs), made.__getitem__),
            name=f"v{i}",
        )
        made[node].meta = dict(node.meta)
        lines.append(f"v{i} = {node.target} {made[node].args} {made[node].kwargs} {_meta(node)}")
    graph.output([made[n] for n in part.exports])
    lines.append(str([made[n].name for n in part.exports]))
    return GraphModule(torch.nn.Module(), graph), "\n".join(lines)
