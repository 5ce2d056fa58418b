"""Reading metrics reports back into numbers, and comparing them with earlier ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from statistics import fmean, pstdev
from typing import Any

_TIME = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_SIZE = {"B": 1.0, "KB": 2.0**10, "MB": 2.0**20, "GB": 2.0**30, "TB": 2.0**40, "PB": 2.0**50}
_UNITS = {**_TIME, **_SIZE, "": 1.0}
_PART = re.compile(r"([\d.]+(?:e[+-]?\d+)?)(PB|TB|GB|MB|KB|B|ms|us|ns|d|h|m|s)?")


def metric_to_number(text: str) -> float:
    """Seconds, bytes or a plain number from texts such as "1m02s003ms", "4.00KB" and "7.5".

    Raises:
        ValueError: the text is none of that.
    """
    total, position = 0.0, 0
    for found in _PART.finditer(text):
        if found.start() != position:
            break
        position = found.end()
        total += float(found[1]) * _UNITS[found[2] or ""]
    if not text or position != len(text):
        raise ValueError(f"{text!r} is no time, size or number")
    return total


def parse_metrics_report(report: str, dehumanize: bool = True) -> dict[str, Any]:
    """All figures of a metrics report, named as in "CompileTime__Percentile_50_sec" and "MarkStep".

    Args:
        report: text of `metrics_report`.
        dehumanize: as numbers; otherwise as they stand in the text.
    """
    found: dict[str, Any] = {}
    name = ""
    convert = metric_to_number if dehumanize else str
    for line in report.splitlines():
        head, _, rest = line.partition(": ")
        head, rest = head.strip(), rest.strip()
        if head in ("Metric", "Counter"):
            name = rest
        elif head == "Value":
            found[name] = int(rest) if dehumanize else rest
        elif head == "Percentiles":
            for point in rest.split("; "):
                percent, _, value = point.partition("=")
                found[f"{name}__Percentile_{percent.removesuffix('%')}{_suffix(value)}"] = convert(value)
        elif head == "TotalSamples":
            found[f"{name}__{head}"] = int(rest) if dehumanize else rest
        elif head in ("Accumulator", "ValueRate", "Rate") and name:
            value, _, per = rest.partition(" / ")
            found[f"{name}__{head}{_suffix(value)}{'_per_sec' if per else ''}"] = convert(value)
    return found


def _suffix(value: str) -> str:
    if value.endswith("B"):
        return "_bytes"
    return "_sec" if value.endswith("s") else ""


def get_data_points_from_metrics_reports(metrics_reports: Iterable[str]) -> dict[str, list[float]]:
    """The figures of several reports, by name; -1 where a report has no such figure."""
    parsed = [parse_metrics_report(r) for r in metrics_reports]
    return {name: [p.get(name, -1) for p in parsed] for name in {n for p in parsed for n in p}}


def compare_metrics(
    data_points: Mapping[str, list[float]], metrics_report: str, config: Mapping[str, Any] | None = None
) -> tuple[str, str]:
    """Compares a report with earlier figures.

    Args:
        data_points: from `get_data_points_from_metrics_reports`.
        metrics_report: the report.
        config: "tolerance": how many standard deviations above the mean are still fine, 2 by default.

    Returns:
        (what is wrong, what was compared), one line each; the first is empty if all is fine.

    Raises:
        NotImplementedError: `config` has expressions ("base_expression"), which would be evaluated as code.
    """
    config = config or {}
    if any(key.endswith("_expression") for key in config):
        raise NotImplementedError("expressions of config are not evaluated: use {'tolerance': standard deviations}")
    tolerance = float(config.get("tolerance", 2.0))
    wrong, all_lines = [], []
    for name, value in parse_metrics_report(metrics_report).items():
        points = [p for p in data_points.get(name, []) if p != -1]
        if not points:
            continue
        limit = fmean(points) + tolerance * pstdev(points)
        line = f"{name}: {value:g}, mean {fmean(points):g}, limit {limit:g}"
        all_lines.append(line)
        if value > limit:
            wrong.append(line)
    return "\n".join(wrong), "\n".join(all_lines)
