"""Rows of figures from what was measured."""

from __future__ import annotations

import math
from statistics import geometric_mean, median, quantiles
from typing import Any

from bench.contenders import PEERS
from bench.measure import Entrant, Match

Row = dict[str, Any]


def spread(values: list[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return low, middle, high


def loss_difference(ours: list[float], reference: list[float]) -> tuple[float | None, int]:
    """Largest relative difference over the steps that both did, and how many those are.

    None when a loss is not finite on one side only: then the difference is no number, and the runs do not agree.
    """
    pairs = list(zip(ours, reference, strict=False))
    if any(math.isfinite(a) != math.isfinite(b) for a, b in pairs):
        return None, len(pairs)
    differences = [abs(a - b) / max(abs(b), 1e-12) for a, b in pairs if math.isfinite(b)]
    return max(differences, default=0.0), len(pairs)


def rows_of(match: Match, names: dict[str, str], place: dict[str, str], optimizer: str) -> list[Row]:
    """One row for each entrant.

    Ratios are times over eager's times of the same round: below 1 is faster than eager. `speedup` is the inverse of the
    median. `compile_s` and `cold_s` are of a process with empty caches, `warm_compile_s` and `warm_s` of a second one:
    seconds spent compiling (in the background for Markstep), and seconds from the start of the first step until full
    speed is reached (where compilation goes on beside training, training rests after 20 s until it is done). `peak_bytes`
    is of the process that took turns, from its start on; `steady_peak_bytes` only of the turns. `before_ready_ratio` is the
    median step time while Markstep still compiles over eager's, `before_ready_mean_ratio` the mean. `floor` and `where` are
    what `bench.floor` and `bench.where` say, `over_floor` is the step time over the floor.
    """
    eager = match.entrants[0]
    return [_row(match, e, eager, names, place, optimizer) for e in match.entrants]


def _row(match: Match, entrant: Entrant, eager: Entrant, names: Row, place: Row, optimizer: str) -> Row:
    row: Row = {**names, "contender": entrant.name}
    if entrant.name == "eager":
        row["optimizer"] = optimizer
    if entrant.error is not None or not entrant.turns:
        return {**row, "error": entrant.error, **place}
    low, ratio, high = spread([ours / theirs for ours, theirs in zip(entrant.turns, eager.turns, strict=True)])
    difference, steps = loss_difference(entrant.final["losses"], eager.final["losses"])
    last = entrant.warm or entrant.cold
    row |= {
        "step_ms": median(entrant.turns) * 1e3,
        "ratio_to_eager": ratio,
        "ratio_low": low,
        "ratio_high": high,
        "speedup": 1 / ratio,
        "peak_bytes": max(last["peak_bytes"], entrant.final["steady_peak_bytes"]),
        "steady_peak_bytes": entrant.final["steady_peak_bytes"],
        "cold_peak_bytes": entrant.cold["peak_bytes"],
        "anonymous_bytes": entrant.final["anonymous_bytes"],
        "peak_allocated_bytes": entrant.final["steady_peak_allocated_bytes"],
        "first_step_s": entrant.cold["first_step_s"],
        "compile_s": entrant.cold["compile_s"],
        "cold_s": entrant.cold["ready_s"],
        "warm_compile_s": entrant.warm.get("compile_s"),
        "warm_s": entrant.warm.get("ready_s"),
        "before_ready_ratio": entrant.before_ratios and entrant.before_ratios[0],
        "before_ready_mean_ratio": entrant.before_ratios and entrant.before_ratios[1],
        "loss_difference": difference,
        "loss_steps": steps,
        "rounds": len(entrant.turns),
    }
    if match.floor:
        floor_ms = match.floor.get("floor_ms")
        row |= {"floor": match.floor, "over_floor": floor_ms and row["step_ms"] / floor_ms}
    if entrant.split:
        row["where"] = entrant.split
    if entrant.name.startswith("markstep"):
        row |= {name: entrant.final[name] for name in ("calls", "cached", "states", "warnings")}
        row |= {name: match.side.get(name) for name in ("trace_us_per_call", "predict_us_per_call", "predict_ms")}
    return {**row, **place}


def notes(rows: list[Row]) -> list[str]:
    """A line for each row in which no program of Markstep ran compiled."""
    lines = []
    for row in rows:
        states = row.get("states")
        if states is not None and "ready" not in states:
            why = "; ".join([*sorted(set(states)), *row["warnings"]]) or "nothing was recorded"
            lines.append(f"{row['model']} {row['dtype']}: Markstep ran eagerly: {why}")
    return lines


def summary(rows: list[Row]) -> list[str]:
    """Geometric means of Markstep's speed-up, over eager and over the better of eager and torch.compile."""
    lines = []
    for dtype in sorted({row["dtype"] for row in rows}):
        over_eager, over_better = [], []
        for row in rows:
            if row["dtype"] != dtype or row["contender"] != "markstep" or "error" in row:
                continue
            peers = [
                other["speedup"]
                for other in rows
                if (other["model"], other["dtype"]) == (row["model"], dtype)
                and other["contender"] in PEERS
                and "error" not in other
            ]
            over_eager.append(row["speedup"])
            over_better.append(row["speedup"] / max(peers))
        if over_eager:
            lines.append(
                f"{dtype}: Markstep is {geometric_mean(over_eager):.2f}x as fast as eager and "
                f"{geometric_mean(over_better):.2f}x as fast as the better of eager and torch.compile "
                f"(geometric means of {len(over_eager)}); worst row {min(over_better):.2f}x of the better"
            )
    return lines
