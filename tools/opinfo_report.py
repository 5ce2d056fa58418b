"""Writes docs/operators.md: which operators of PyTorch's database run under Markstep, and which it refuses to defer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("MARKSTEP_CACHE_DIR", str(ROOT / ".pytest_cache" / "markstep"))

import torch  # noqa: E402
from tests.opinfo.sweep import EXCLUDED, Outcome, full_name, operators, sweep  # noqa: E402

from markstep.record.program import find_op  # noqa: E402
from markstep.record.schema import Kind, facts  # noqa: E402

REASONS = {
    Kind.LAZY: "takes or gives tensors that a program cannot hold (sparse, for example)",
    Kind.PASS: "only reads metadata",
    Kind.VALUE: "its result is a Python value, or its shape depends on values",
    Kind.OPAQUE: "changes a storage or uses objects that a program cannot hold",
}
HEAD = """# Operators

Written by `tools/opinfo_report.py`; do not edit. torch {torch}, CPU, backend "interpreter", {samples} samples of each operator.

Every operator of PyTorch's own database of sample inputs (`op_db`) does a step of forward and backward four times, eagerly and
under Markstep. Results, gradients, inputs, strides, shared memory and torch's generator must be equal to the last bit.
In-place forms are tried as well.

| | operators | sample inputs |
|---|---|---|
| compared | {total} | {samples_total} |
| **equal to eager, bit for bit** | **{passed}** | |
| predicted and replayed as a whole | {whole} | {predicted} |
| eager raises an error, Markstep the same one | | {raised} |

## Not predicted

These give eager's results, too, but end a program or run outside of it: speed is lost around them, nothing else.

| operator | samples not predicted | why |
|---|---|---|
{refused}

## Different from eager

{failed}

## Not compared

| operator | why |
|---|---|
{excluded}
"""


def reason(outcome: Outcome) -> str:
    """Why some of an operator's samples are not predicted."""
    texts = []
    for cut in outcome.refused:
        if "::" not in cut:
            texts.append(f"{cut} reads memory outside of operators")
            continue
        texts.append(f"`{cut}` {REASONS[facts(find_op(cut)).kind]}")
    return "; ".join(texts) or "nothing to defer: its result is a Python value, or its shape depends on values"


def main() -> None:
    """Sweeps and writes the page."""
    torch.set_num_threads(1)
    outcomes = {}
    for op, dtype in operators():
        outcomes[full_name(op)] = sweep(op, dtype)
        print(f"\r{len(outcomes)} operators", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    missed = {n: o for n, o in outcomes.items() if o.predicted < o.samples - o.raised}
    failed = {n: o.failures[0].replace("\n", " ")[:200] for n, o in outcomes.items() if o.failures}
    text = HEAD.format(
        torch=torch.__version__.split("+")[0],
        samples=os.environ.get("OPINFO_SAMPLES", "up to 4"),
        total=len(outcomes),
        samples_total=sum(o.samples for o in outcomes.values()),
        passed=sum(not o.failures for o in outcomes.values()),
        whole=len(outcomes) - len(missed),
        predicted=sum(o.predicted for o in outcomes.values()),
        raised=sum(o.raised for o in outcomes.values()),
        refused="\n".join(
            f"| {n} | {o.samples - o.raised - o.predicted} of {o.samples} | {reason(o)} |" for n, o in missed.items()
        ),
        failed="\n".join(f"* {n}: {text}" for n, text in failed.items()) or "None.",
        excluded="\n".join(f"| {n} | {why} |" for n, why in EXCLUDED.items()),
    )
    page = ROOT / "docs" / "operators.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(text)
    print(text.split("## Not predicted")[0])


if __name__ == "__main__":
    main()
