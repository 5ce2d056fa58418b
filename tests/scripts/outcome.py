"""Imported by the scripts next to it, as a script's own helper modules are."""

import dataclasses
from typing import Any

import torch

import markstep


def save(path: str, **results: Any) -> None:
    """Saves what a script has computed, and what Markstep did meanwhile."""
    report = markstep.explain()
    figures = {
        "compiled": report.compiled_steps,
        "eager": report.eager_steps,
        "boundaries": dict(report.boundaries),
        "uncut": dict(report.uncut),
        "deoptimisations": dict(report.deoptimisations),
        "programs": [dataclasses.asdict(p) for p in report.programs],
        "warnings": list(report.warnings),
        "text": str(report),
    }
    torch.save({"results": results, "figures": figures}, path)
