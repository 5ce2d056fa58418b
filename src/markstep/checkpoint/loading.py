"""Reading one checkpoint: everything is read and checked in all processes before anything is changed in one."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markstep.checkpoint import files, optimizers, parts, random_state, sharded
from markstep.checkpoint.errors import CheckpointError
from markstep.checkpoint.files import Manifest
from markstep.checkpoint.parts import Parts
from markstep.checkpoint.ranks import Ranks
from markstep.checkpoint.resharding import Shards
from markstep.checkpoint.weights import Fit, LoadedWeights, apply, fit, read_file, shapes, unwrapped


@dataclass(frozen=True)
class Restored:
    """What was loaded.

    Attributes:
        path: folder of the checkpoint.
        step: number of the training step after which it was saved.
        extra: what was given as `extra` when it was saved, or None.
        weights: how the names of the model's weights matched.
    """

    path: Path
    step: int
    extra: Any = None
    weights: LoadedWeights = LoadedWeights()


def check(folder: Path, manifest: Manifest, ranks: Ranks) -> str | None:
    """What is wrong with the files of a checkpoint, or None; each process looks at its share of them."""

    def look() -> str | None:
        if not folder.is_dir():
            raise CheckpointError(f"{folder} is not there, but rank 0 has it: checkpoints have to be on storage that all share")
        return files.damage(folder, manifest, list(manifest.files)[ranks.rank :: ranks.size])

    return next(filter(None, ranks.together(f"checking {folder}", look)), None)


def read(folder: Path, manifest: Manifest, given: Parts, ranks: Ranks, *, strict: bool, rng: bool) -> Restored:
    """Loads a checkpoint that `check` has found whole; all processes have to call it.

    Args:
        folder: of the checkpoint.
        manifest: of the checkpoint.
        given: what to load into.
        ranks: the processes.
        strict: missing and unexpected names of weights are errors.
        rng: restore the states of random number generators.

    Raises:
        CheckpointError: it does not fit in some process. Nothing was changed in a model or an optimizer then.
    """
    doing = f"loading {folder}"
    loading = _Loading(folder, manifest, given, ranks, strict)
    with random_state.settled():
        ranks.together(doing, loading.fit)
        ranks.together(doing, loading.read_shards)
        if ranks.rank == 0:
            loading.warn_of_other_size(rng)
        ranks.together(doing, lambda: loading.apply(rng))
    return loading.restored()


class _Loading:
    """One process's part in loading a checkpoint."""

    def __init__(self, folder: Path, manifest: Manifest, given: Parts, ranks: Ranks, strict: bool) -> None:
        self._folder, self._manifest, self._given, self._ranks, self._strict = folder, manifest, given, ranks, strict
        self._fit = Fit({}, LoadedWeights())
        self._weights: dict[str, Any] = {}
        self._local: dict[str, Any] = {}
        self._extra: Any = None
        self._pending: dict[str, list[tuple[Any, Any]]] = {}  # objects and their states
        self._shards: Shards | None = None

    def fit(self) -> None:
        """Reads what is not sharded, and checks that everything fits."""
        parts.check_forms(self._given, self._manifest.forms, str(self._folder))
        optimizers.check_shapes(self._given.optimizer, self._manifest.shapes)
        every = self._file("ranks")
        self._local = every[self._ranks.rank if self._ranks.rank < len(every) else 0]
        self._extra = self._file("extra") if "extra.pt" in self._manifest.files else None
        for name in ("scheduler", "scaler"):
            if getattr(self._given, name) is not None:
                self._match(name, self._file(name))
        if self._given.loader is not None:
            self._match("loader", self._local["loader"])
        if self._manifest.sharded:
            sharded.check(self._ranks)
            self._shards = Shards(self._folder / sharded.FOLDER, self._given, strict=self._strict)
            self._fit = self._shards.fit
            return
        if self._given.model is not None:
            self._weights = self._file("model", mmap=True)
            own = unwrapped(self._given.model).state_dict()
            self._fit = fit(own, shapes(self._weights), origin=str(self._folder), strict=self._strict)
        if self._given.optimizer is not None:
            self._match("optimizer", self._file("optimizer"))

    def _file(self, name: str, *, mmap: bool = False) -> Any:
        return read_file(self._folder / f"{name}.pt", mmap=mmap)

    def _match(self, name: str, states: Any) -> None:
        self._pending[name] = list(parts.matched(getattr(self._given, name), states).values())

    def read_shards(self) -> None:
        """Reads what is sharded."""
        if self._shards is None:
            return
        self._weights, states = self._shards.read(self._ranks)
        if states is not None:
            objects = parts.named(self._given.optimizer)
            self._pending["optimizer"] = [(one, states[key]) for key, one in objects.items()]

    def warn_of_other_size(self, rng: bool) -> None:
        """Says so if another number of processes has saved what each process has of its own."""
        before, now = self._manifest.world_size, self._ranks.size
        if before != now and (rng or self._given.loader is not None):
            warnings.warn(
                f"{self._folder} was saved by {before} processes and is loaded by {now}: random numbers will not be those of "
                "an undisturbed run, and loaders begin at the position that rank 0 had where a process is new",
                stacklevel=2,
            )

    def apply(self, rng: bool) -> None:
        """Changes the objects. What can run a user's code comes first, so that its errors leave the weights alone."""
        for name in ("scheduler", "scaler", "loader", "optimizer"):
            for one, state in self._pending.get(name, []):
                one.load_state_dict(state)
        if self._given.model is not None:
            apply(unwrapped(self._given.model), self._weights, self._fit, strict=self._strict)
        if rng and self._ranks.rank < self._manifest.world_size:
            random_state.restore(self._local["rng"])
        elif rng:
            random_state.seed_from(self._local["rng"], self._ranks.rank)

    def restored(self) -> Restored:
        """What was loaded."""
        return Restored(self._folder, self._manifest.step, self._extra, self._fit.loaded)
