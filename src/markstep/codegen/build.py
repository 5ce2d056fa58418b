"""Compiles all graphs of a plan into an entry of the store, and loads an entry."""

from __future__ import annotations

import time
from pathlib import Path

from markstep.codegen import inductor
from markstep.codegen.cache import Store, key_of, key_parts
from markstep.codegen.executable import Compiled
from markstep.codegen.lower import build, feed_of
from markstep.codegen.plan import Plan


def compile_plan(plan: Plan, store: Store) -> str:
    """Compiles and stores; returns the key. Runs in the child process, or in this one when asked not to wait for one."""
    start = time.perf_counter()
    parts = key_parts(plan)
    folder = store.scratch()
    for number, piece in enumerate(plan.pieces):
        if not piece.graph:
            continue
        graph, example = build(plan, piece, feed_of(plan, piece), inductor.decompositions())
        source = inductor.compile_graph(graph, example)
        (folder / f"piece{number}.py").write_text(source)
        inductor.pack(source, folder)
    key = key_of(parts)
    store.put(key, parts, folder, seconds=time.perf_counter() - start)
    return key


def load_plan(plan: Plan, folder: Path) -> Compiled:
    """The executable of a stored entry."""
    graphs = []
    for number, piece in enumerate(plan.pieces):
        if piece.graph:
            source = (folder / f"piece{number}.py").read_text()
            graphs.append((feed_of(plan, piece), inductor.load(source, folder)))
        else:
            graphs.append(None)
    return Compiled(plan, graphs)
