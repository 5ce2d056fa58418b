#!/usr/bin/env python3
"""Prints the table of docs/benchmarks.md from files that `markstep bench --json FILE` wrote.

Usage: tools/bench_report.py FILE [FILE ...]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Row = dict[str, Any]
_HEAD = (
    "model",
    "dtype",
    "contender",
    "step, ms",
    "ratio to eager",
    "peak, MiB",
    "first step, s",
    "compilation, s",
    "before ready",
    "loss difference",
)


def cells(row: Row) -> list[str]:
    """One line of the table."""
    names = [row["model"], row["dtype"], row["contender"] + (f" ({row['optimizer']})" if "optimizer" in row else "")]
    if "error" in row:
        return [*names, f"failed: {(row['error'] or 'no turn').splitlines()[-1]}"]
    if row["contender"].startswith("markstep") and "ready" not in row["states"]:
        names[2] += " (stays eager)"
    eager = row["contender"] == "eager"
    before = row.get("before_ready_ratio")
    loss = row["loss_difference"]
    return [
        *names,
        f"{row['step_ms']:.3g}" if row["step_ms"] < 1000 else f"{row['step_ms']:.0f}",
        "1" if eager else f"{row['ratio_to_eager']:.2f} ({row['ratio_low']:.2f}–{row['ratio_high']:.2f})",
        f"{row['peak_bytes'] / 2**20:.0f}",
        f"{row['first_step_s']:.2f}",
        "" if eager else f"{row['compile_s']:.0f}",
        f"{before:.2f}" if before is not None else "",
        "" if eager else "not finite" if loss is None else f"{loss:.0e}",
    ]


def main(paths: list[str]) -> int:
    """Reads the files and prints."""
    if not paths:
        print(__doc__, file=sys.stderr)
        return 2
    rows: list[Row] = [row for path in paths for row in json.loads(Path(path).read_text())]
    print(f"| {' | '.join(_HEAD)} |")
    print("|" + "---|" * len(_HEAD))
    for row in rows:
        print(f"| {' | '.join(cells(row))} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
