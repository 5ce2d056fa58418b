"""Loading model and optimizers that several processes have written, into as many processes or another number."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from markstep.checkpoint import parts, sharded
from markstep.checkpoint.errors import CheckpointError
from markstep.checkpoint.parts import Parts
from markstep.checkpoint.ranks import Ranks
from markstep.checkpoint.weights import Fit, LoadedWeights, fit, parameter_names, unwrapped


class Shards:
    """One process's part in loading them.

    Attributes:
        fit: how the names of weights match.
    """

    def __init__(self, folder: Path, given: Parts, *, strict: bool) -> None:
        self._index = sharded.Index(folder)
        self._given = given
        self._places: dict[str, Any] = {}
        self._names = parameter_names(given.model)
        self.fit = Fit({}, LoadedWeights())
        if given.model is not None:
            self._fit_model(str(folder), unwrapped(given.model).state_dict(), strict)
        if given.optimizer is not None:
            self._fit_optimizers()

    def _fit_model(self, origin: str, own: Mapping[str, Any], strict: bool) -> None:
        saved: dict[str, tuple[int, ...] | None] = {}
        keys = self._index.under("model")
        for key, path in keys.items():
            saved[path[0]] = self._index.shapes[key] if len(path) == 1 else None
        self.fit = fit(own, saved, origin=origin, strict=strict)
        for key, path in keys.items():
            if (new := self.fit.names.get(path[0])) is not None:
                like = own[new] if isinstance(own[new], torch.Tensor) else None
                self._places[key] = self._index.empty(key, like)

    def _fit_optimizers(self) -> None:
        if self._given.model is None:
            raise CheckpointError("the state of a sharded optimizer is stored by names of weights: load it with its model")
        named = {name: p for p, name in self._names.items()}
        for key, path in self._index.under("optimizer").items():
            at = path.index("state") if "state" in path[:2] else None
            parameter = None if at is None else named.get(self._renamed(path[at + 1]))
            self._places[key] = self._index.empty(key, parameter)

    def _renamed(self, name: str) -> str:
        return self.fit.names.get(name, name)

    def read(self, ranks: Ranks) -> tuple[dict[str, Any], Any]:
        """The weights by their names in the checkpoint, and the state dicts of the optimizers as they were given.

        Raises:
            CheckpointError: optimizers have other parameters than those that were saved.
        """
        content = _nested(self._index.paths, self._index.read(self._places, ranks))
        return content.get("model", {}), self._optimizer_states(content.get("optimizer"))

    def _optimizer_states(self, saved: Any) -> Any:
        if self._given.optimizer is None:
            return None
        pairs = parts.matched(self._given.optimizer, saved)
        return {key: sharded.numbered_state(one, self._names, self._in_own_names(state)) for key, (one, state) in pairs.items()}

    def _in_own_names(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        groups = [{**g, "params": [self._renamed(n) for n in g["params"]]} for g in saved["param_groups"]]
        return {"state": {self._renamed(n): s for n, s in saved.get("state", {}).items()}, "param_groups": groups}


def _nested(paths: Mapping[str, tuple[Any, ...]], flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dictionaries and lists in each other, made of values by the way to each."""
    root: dict[Any, Any] = {}
    for key, value in flat.items():
        inner = root
        *way, last = paths[key]
        for part in way:
            inner = inner.setdefault(part, {})
        inner[last] = value
    result: dict[str, Any] = _with_lists(root)
    return result


def _with_lists(value: Any) -> Any:
    """Dictionaries whose keys are positions become lists."""
    if not isinstance(value, dict):
        return value
    items = {key: _with_lists(inner) for key, inner in value.items()}
    return [items[i] for i in sorted(items)] if items and all(isinstance(key, int) for key in items) else items
