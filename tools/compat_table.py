"""Writes docs/compat.md: what of torch_xla's API works with Markstep, and what is different."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from markstep.compat.table import ENTRIES, ENVIRONMENT, SAGEMAKER, Entry, Setting

ROOT = Path(__file__).resolve().parent.parent
HEAD = """# torch_xla

Written by `tools/compat_table.py` from `markstep/compat/table.py`; do not edit.

Markstep contains an implementation of torch_xla's Python API on its own xla device, so that scripts written for torch_xla or for
SageMaker Training Compiler run on CPU and CUDA, with PyTorch's own kernels, Markstep's compiler and no XLA. `markstep run
script.py` makes `import torch_xla` work for a script; `markstep.install_torch_xla()` does so in a program, before its first
`import torch_xla`. A real torch_xla that is installed is left alone: `markstep run` uses it, and `install_torch_xla` raises
RuntimeError, unless it gets `instead_of_real=True`.

## What is different

{differences}

## Names

The API is that of 2.9, with names that earlier releases had. "Since" is the first release of torch_xla that has the name, 1.9 for
older ones, - if torch_xla has it in another module only.

| state | names | |
|---|---|---|
{states}
"""
STATES = {
    "works": "notes tell what is different",
    "no effect": "is accepted and does nothing; notes tell why that is right",
    "deprecated": "works, with a DeprecationWarning; notes tell since which release, and what to use",
    "raises": "can be imported; the call raises NotImplementedError; notes tell what to do instead",
}
DIFFERENCES = (
    "NaN is kept where torch_xla drops it (`max`, `maximum`).",
    "An index out of range is an error; torch_xla clamps it.",
    "Writing in place to a tensor whose elements overlap (`expand`) is an error; torch_xla writes wrong numbers.",
    "`Module.to` keeps Parameter objects: tied weights stay tied, and the optimizer may be made before.",
    "Reading a value (`item`, `print`, `cpu`) fills all live tensors; torch_xla computes what is shared again later.",
    "A process has one device, `xla:0`. Several workers are several processes: `xmp.spawn` and `torch_xla.launch` start no "
    "threads, so what they run must be importable.",
    "`t.t().view(-1)` works as in torch_xla, whose tensors have no strides, though the result is a copy here. Writing to one of "
    "the two while both exist is therefore an error. `stride()` is PyTorch's.",
    "`torch.manual_seed` seeds the device, too.",
    "An LSTM is computed cell by cell, where PyTorch has one kernel for all of it on the CPU: right, and slower.",
)


def text() -> str:
    """The whole page."""
    counts = Counter(e.state for e in ENTRIES)
    states = "\n".join(f"| {state} | {counts[state]} | {meaning} |" for state, meaning in STATES.items())
    parts = [HEAD.format(differences="\n".join(f"* {d}" for d in DIFFERENCES), states=states)]
    by_module = groupby(ENTRIES, key=lambda e: e.name.rpartition(".")[0])
    parts += [f"### {module}\n\n{_names(entries)}\n" for module, entries in by_module]
    parts.append(f"## Environment variables\n\n{_settings(ENVIRONMENT)}\n")
    parts.append(f"## SageMaker Training Compiler\n\n{_settings(SAGEMAKER)}\n")
    return "\n".join(parts)


def _names(entries: Iterable[Entry]) -> str:
    rows = ["| name | since | state | notes |", "|---|---|---|---|"]
    for (since, state, notes), group in groupby(entries, key=lambda e: (e.since, e.state, e.notes)):
        names = ", ".join(f"`{e.name.rpartition('.')[2]}`" for e in group)
        rows.append(f"| {names} | {since} | {state} | {notes} |")
    return "\n".join(rows)


def _settings(settings: Iterable[Setting]) -> str:
    return "\n".join(
        ["| name | state | effect |", "|---|---|---|", *(f"| `{s.name}` | {s.state} | {s.effect} |" for s in settings)]
    )


if __name__ == "__main__":
    (ROOT / "docs" / "compat.md").write_text(text())
