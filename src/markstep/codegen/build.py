"""Compiles all graphs of a program into an entry of the store, and loads an entry."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from markstep.codegen import attention, head, inductor, layout, narrow
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
    is tried again without cuts at repeated layers, and then with the operators that TorchInductor only calls, without
    compiling them, left to the host.
    """
    start = time.perf_counter()
    parts = key_parts(program, recipe)
    whole = Recipe(recipe.rng, recipe.passes - {"repeated_layers"})
    host: frozenset[str] = frozenset()
    attempts = [(recipe, host)]
    if whole != recipe:
        attempts.append((whole, host))
    left_out = inductor.fallbacks({c.op.name() for c in program.calls})
    if left_out:
        attempts.append((whole, left_out))
    for attempt, (used, host) in enumerate(attempts, 1):
        try:
            folder, rewrites = _compile(make_plan(program, recipe.rng, host), used, store, compilers)
            break
        except Exception:
            if attempt == len(attempts):
                raise
    key = key_of(parts)
    store.put(key, parts, folder, seconds=time.perf_counter() - start, host=sorted(host), rewrites=dict(rewrites))
    return key


def _compile(plan: Plan, recipe: Recipe, store: Store, compilers: int) -> tuple[Path, Counter[str]]:
    """The folder with everything compiled, and how many places each pass has rewritten."""
    folder, counts = store.scratch(), Counter[str]()
    sources: list[str] = []
    examples: dict[int, list[Tensor]] = {}
    table = inductor.decompositions()
    if "attention" in recipe.passes:
        table = {**table, **attention.decompositions()}
    try:
        for number, piece in enumerate(plan.pieces):
            if piece.graph:
                rewrites = _rewrites(plan.program, piece, recipe.passes)
                counts.update(rewrites.counts())
                graph, example = build(plan, piece, feed_of(plan, piece), table, rewrites)
                chain, graphs = split(graph) if "repeated_layers" in recipe.passes else uncut(graph)
                (folder / f"piece{number}.json").write_text(json.dumps(chain.to_json()))
                counts["repeated_layers"] += len(chain.links) - len(graphs)
                for part, part_graph in enumerate(graphs):
                    inputs = (
                        [n.meta["val"] for n in part_graph.graph.find_nodes(op="placeholder")] if len(graphs) > 1 else example
                    )
                    sources.append(inductor.compile_graph(part_graph, inputs, compilers))
                    (folder / f"piece{number}.{part}.py").write_text(sources[-1])
                examples[number] = example
        for source in sources:
            inductor.pack(source, folder)
        for number, example in examples.items():
            _try_out(_load(folder, number), example)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, +counts


def _load(folder: Path, number: int) -> inductor.Runner:
    """The function of a compiled piece."""
    chain = Chain.from_json(json.loads((folder / f"piece{number}.json").read_text()))
    count = 1 + max(link.module for link in chain.links)
    return chain.runner([inductor.load((folder / f"piece{number}.{i}.py").read_text(), folder) for i in range(count)])


def _rewrites(program: Program, piece: Piece, passes: frozenset[str]) -> Rewrites:
    heads = head.find(program, piece) if "loss_head" in passes else ()
    narrow_products = narrow.find(program).intersection(piece.positions) if "narrow_products" in passes else frozenset()
    free = layout.find(program, piece) if "channels_last" in passes else frozenset()
    return Rewrites(heads, narrow_products, free)


def _try_out(call: inductor.Runner, example: list[Tensor]) -> None:
    needed = sum(t.untyped_storage().nbytes() for t in example)
    if needed > _MAX_TRIAL_BYTES:
        return
    call([torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).zero_() for t in example])


def load_program(program: Program, recipe: Recipe, store: Store, folder: Path) -> Compiled:
    """The executable of a stored entry."""
    facts = store.facts(folder)
    plan = make_plan(program, recipe.rng, frozenset(facts["host"]))
    graphs: list[tuple[Feed, inductor.Runner] | None] = []
    for number, piece in enumerate(plan.pieces):
        if piece.graph:
            graphs.append((feed_of(plan, piece), _load(folder, number)))
        else:
            graphs.append(None)
    return Compiled(plan, graphs, facts["rewrites"])
