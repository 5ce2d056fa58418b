"""Optimizers: what is checked before their state is loaded."""

from __future__ import annotations

from typing import Any

from markstep.checkpoint.errors import CheckpointError
from markstep.checkpoint.parts import label, named

Shapes = list[list[list[int]]]


def parameter_shapes(optimizers: Any) -> dict[str, Shapes]:
    """Shapes of the parameters in each group of each optimizer, by the optimizer's name."""
    return {
        key: [[list(p.shape) for p in group["params"]] for group in getattr(one, "param_groups", [])]
        for key, one in named(optimizers).items()
    }


def check_shapes(optimizers: Any, saved: dict[str, Shapes]) -> None:
    """Checks that optimizers have the groups that were saved: torch itself looks only at the number of parameters.

    Raises:
        CheckpointError: there are other groups, or parameters of other shapes in them.
    """
    for key, own in parameter_shapes(optimizers).items():
        old, name = saved.get(key), label("optimizer", key)
        if old is None or own == old:
            continue
        if [len(g) for g in own] != [len(g) for g in old]:
            raise CheckpointError(
                f"{name} has groups of {[len(g) for g in own]} parameters, the checkpoint of {[len(g) for g in old]}"
            )
        wrong = [
            (i, j, a, b)
            for i, (g, h) in enumerate(zip(old, own, strict=True))
            for j, (a, b) in enumerate(zip(g, h, strict=True))
            if a != b
        ]
        i, j, a, b = wrong[0]
        raise CheckpointError(f"parameter {j} in group {i} of {name} has shape {b}, in the checkpoint {a} ({len(wrong)} differ)")
