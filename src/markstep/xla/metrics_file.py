"""XLA_METRICS_FILE: the report of all metrics, added to a file at the end of every step."""

from __future__ import annotations

import os
import threading

from markstep.xla import metrics, processes

_lock = threading.Lock()
_steps = 0


def save_metrics(metrics_file: str | None = None) -> None:
    """Adds the report to a file, by default XLA_METRICS_FILE; does nothing if there is none.

    With several processes each but the first has a file of its own, with ".<ordinal>" at the end.
    """
    global _steps
    path = metrics_file or os.environ.get("XLA_METRICS_FILE")
    if not path:
        return
    rank = processes.ordinal()
    if metrics_file is None and rank:
        path = f"{path}.{rank}"
    with _lock, open(path, "a", encoding="utf-8") as file:
        file.write(f"[MetricsData; step={_steps}]\n{metrics.metrics_report()}\n")
        _steps += 1
