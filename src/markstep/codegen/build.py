"""Compiles all graphs of a program into an entry of the store, and loads an entry."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from markstep.codegen import attention, head, inductor, layout, narrow, products
from markstep.codegen.cache import Store, key_of, key_parts
from markstep.codegen.executable import Compiled
from markstep.codegen.lower import Feed, Rewrites, build, feed_of
from markstep.codegen.plan import Piece, Plan, make_plan
from markstep.codegen.recipe import Recipe
from markstep.codegen.repeats import Chain, split, uncut
from markstep.record.program import Program

_MAX_TRIAL_BYTES = 2 << 30


def compile_program(program: Program, recipe: Recipe, store: Store, compilers: int) -> str:
    """Compiles and stores; returns the key. Runs in the child process.

    What was compiled is run once on zeros, so that a program that fails is never met during training. If anything fails, all
    is tried once more: without cuts at repeated layers, and with the operators that TorchInductor only calls, without
    compiling them, left to the host.
    """
    start = time.perf_counter()
    parts = key_parts(program, recipe)
    host: frozenset[str] = frozenset()
    rewrites = Counter[str]()
    try:
        folder = _compile(make_plan(program, recipe.rng), recipe, store, compilers, rewrites)
    except Exception:
        host = inductor.fallbacks({c.op.name() for c in program.calls})
        if not host and not rewrites["repeated_layers"]:
            raise  # it would be the same again
        rewrites.clear()
        whole = replace(recipe, passes=recipe.passes - {"repeated_layers"})
        folder = _compile(make_plan(program, recipe.rng, host), whole, store, compilers, rewrites)
    key = key_of(parts)
    store.put(key, parts, folder, seconds=time.perf_counter() - start, host=sorted(host), rewrites=dict(+rewrites))
    return key


def _compile(plan: Plan, recipe: Recipe, store: Store, compilers: int, rewritten: Counter[str]) -> Path:
    """The folder with everything compiled; adds to `rewritten` how many places each pass has rewritten."""
    folder = store.scratch()
    sources: list[str] = []
    examples: dict[int, list[Tensor]] = {}
    table = inductor.decompositions()
    if "attention" in recipe.passes:
        table = {**table, **attention.decompositions()}
    try:
        for number, piece in enumerate(plan.pieces):
            if piece.graph:
                rewrites = _rewrites(plan.program, piece, recipe.passes)
                rewritten.update(rewrites.counts())
                graph, example = build(plan, piece, feed_of(plan, piece), table, rewrites)
                chain, graphs = split(graph) if "repeated_layers" in recipe.passes else uncut(graph)
                (folder / f"piece{number}.json").write_text(json.dumps(chain.to_json()))
                rewritten["repeated_layers"] += len(chain.links) - len(graphs)
                for part, part_graph in enumerate(graphs):
                    sources.append(inductor.compile_graph(part_graph, compilers))
                    (folder / f"piece{number}.{part}.py").write_text(sources[-1])
                examples[number] = example
        for source in sources:
            inductor.pack(source, folder)
        for number, example in examples.items():
            _try_out(_load(folder, number, recipe), example)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _load(folder: Path, number: int, recipe: Recipe) -> inductor.Runner:
    """The function of a compiled piece."""
    library = products.EXTERN if "product_library" in recipe.passes else None
    chain = Chain.from_json(json.loads((folder / f"piece{number}.json").read_text()))
    count = 1 + max(link.module for link in chain.links)
    return chain.runner([inductor.load((folder / f"piece{number}.{i}.py").read_text(), folder, library) for i in range(count)])


def _rewrites(program: Program, piece: Piece, passes: frozenset[str]) -> Rewrites:
    heads = head.find(program, piece) if "loss_head" in passes else ()
    narrow_products = narrow.find(program).intersection(piece.positions) if "narrow_products" in passes else frozenset()
    free = layout.find(program, piece) if "channels_last" in passes else frozenset()
    return Rewrites(heads, narrow_products, free, "product_library" in passes)


def _try_out(call: inductor.Runner, example: list[Tensor]) -> None:
    needed = sum(t.untyped_storage().nbytes() for t in example)
    if needed > _MAX_TRIAL_BYTES:
        return
    call([torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).zero_() for t in example])


def load_program(program: Program, recipe: Recipe, store: Store, folder: Path) -> Compiled:
    """The executable of a stored entry."""
    facts = store.facts(folder)
    products.chooser(store.root.parent)
    plan = make_plan(program, recipe.rng, frozenset(facts["host"]))
    graphs: list[tuple[Feed, inductor.Runner] | None] = []
    for number, piece in enumerate(plan.pieces):
        if piece.graph:
            graphs.append((feed_of(plan, piece), _load(folder, number, recipe)))
        else:
            graphs.append(None)
    return Compiled(plan, graphs, facts["rewrites"])
