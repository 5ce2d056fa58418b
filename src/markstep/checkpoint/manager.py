"""Checkpoints of a training in a folder, and single ones."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from torch import nn

from markstep.checkpoint import files, folders, loading, saving
from markstep.checkpoint.errors import CheckpointError
from markstep.checkpoint.files import Manifest
from markstep.checkpoint.loading import Restored
from markstep.checkpoint.parts import Parts
from markstep.checkpoint.ranks import Ranks, current

_PREFIX = "step-"
_TIMEOUT = 1800.0


class Checkpoints:
    """The checkpoints of a training: the newest complete one is found again, old ones are removed.

    Every method but `latest` and `steps` has to be called in all processes of a training.

    Args:
        folder: where they are; made by the first `save`. All processes have to see it.
        keep: how many complete ones stay; None: all.
        sharded: each process writes its part of model and optimizer, through torch.distributed.checkpoint. Otherwise rank 0
            writes everything.
        timeout: seconds that a process waits for the others.

    Raises:
        ValueError: `keep` is less than 1.
    """

    def __init__(self, folder: str | Path, *, keep: int | None = 3, sharded: bool = False, timeout: float = _TIMEOUT) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"keep={keep}: at least one checkpoint has to stay")
        self.folder = Path(folder)
        self.keep = keep
        self.sharded = sharded
        self.timeout = timeout

    def save(
        self,
        step: int,
        *,
        model: nn.Module | None = None,
        optimizer: Any = None,
        scheduler: Any = None,
        scaler: Any = None,
        loader: Any = None,
        extra: Any = None,
    ) -> Path:
        """Saves what is given, and the random number generators of all processes; then removes old checkpoints.

        Args:
            step: how many training steps were done.
            model: wrappers (DistributedDataParallel, torch.compile) leave no trace in the names of its weights.
            optimizer: one, a list or a dictionary of them.
            scheduler: of learning rates: one, a list or a dictionary.
            scaler: a GradScaler.
            loader: a `ResumableLoader`, or another loader with `state_dict` and `load_state_dict`; each process has its own.
            extra: tensors, numbers, strings and lists, tuples and dictionaries of them; that of rank 0 is saved.

        Returns:
            The folder of the checkpoint, which is complete and on the disk.

        Raises:
            CheckpointError: it failed in some process, which the message names. Older checkpoints are what they were.
            TypeError: a value cannot be loaded without running code.
            ValueError: the model is sharded, and `sharded` is not set.
        """
        ranks = current(self.timeout)
        given = Parts(model, optimizer, scheduler, scaler, loader)
        name, serial = ranks.first(f"saving to {self.folder}", lambda: self._prepare(step))
        final = self.folder / name
        saving.write(final, Manifest(step, serial, self.sharded, ranks.size), given, extra, ranks)
        if ranks.rank == 0:
            self._remove_old(final)
        return final

    def _prepare(self, step: int) -> tuple[str, int]:
        """A name that is free, and the number of the checkpoint among all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        folders.clean(self.folder, _PREFIX)
        serial = max((m.serial for _, m, _ in self._found() if m is not None), default=0) + 1
        name = f"{_PREFIX}{step:08d}"
        return (name if not (self.folder / name).exists() else f"{name}-{serial}"), serial

    def _remove_old(self, newest: Path) -> None:
        if self.keep is None:
            return
        kept = {newest, *[path for path, _, problem in self._found() if problem is None][: self.keep]}
        for path in [path for path, _, _ in self._found() if path not in kept]:
            try:
                folders.remove(path)
            except OSError as error:
                warnings.warn(f"the old checkpoint {path} could not be removed: {error}", stacklevel=3)

    def load(
        self,
        *,
        model: nn.Module | None = None,
        optimizer: Any = None,
        scheduler: Any = None,
        scaler: Any = None,
        loader: Any = None,
        step: int | None = None,
        strict: bool = True,
        rng: bool = True,
    ) -> Restored | None:
        """Loads the newest complete checkpoint. One that is damaged is passed over, with a warning that names the file.

        Prefixes of names (`module.`, `_orig_mod.`, `model.`) are repaired if then all match, with a warning. Everything is
        checked before anything is changed.

        Args:
            model: see `save`, like the next four. What is not given is not loaded.
            optimizer: see there.
            scheduler: see there.
            scaler: see there.
            loader: see there.
            step: load the checkpoint of this step.
            strict: missing and unexpected names of weights are errors.
            rng: restore the random number generators.

        Returns:
            What was loaded; None if there is no checkpoint yet.

        Raises:
            CheckpointError: names, shapes or objects do not match; or there are checkpoints, but all are damaged; or `step`
                is given and not there.
        """
        ranks = current(self.timeout)
        given = Parts(model, optimizer, scheduler, scaler, loader)
        for name, manifest in ranks.first(f"looking for checkpoints in {self.folder}", lambda: self._candidates(step)):
            if problem := loading.check(self.folder / name, manifest, ranks):
                self._warn(ranks, f"{problem}: {self.folder / name} is passed over")
                continue
            return loading.read(self.folder / name, manifest, given, ranks, strict=strict, rng=rng)
        if ranks.first(f"looking for checkpoints in {self.folder}", lambda: bool(self._found())) or step is not None:
            which = "whole checkpoint" if step is None else f"whole checkpoint of step {step}"
            raise CheckpointError(f"{self.folder} has no {which}")
        return None

    def _candidates(self, step: int | None) -> list[tuple[str, Manifest]]:
        found = []
        for path, manifest, problem in self._found():
            if manifest is None:
                warnings.warn(f"{problem}: {path} is passed over", stacklevel=2)
            elif step is None or manifest.step == step:
                found.append((path.name, manifest))
        return found

    @staticmethod
    def _warn(ranks: Ranks, text: str) -> None:
        if ranks.rank == 0:
            warnings.warn(text, stacklevel=3)

    def _found(self) -> list[tuple[Path, Manifest | None, str | None]]:
        """All checkpoints, newest first, those without a manifest last, and what is wrong with each by the look of it."""
        found: list[tuple[Path, Manifest | None, str | None]] = []
        for path in self.folder.glob(f"{_PREFIX}*"):
            try:
                manifest = files.read_manifest(path)
            except CheckpointError as error:
                found.append((path, None, str(error)))
            else:
                found.append((path, manifest, files.damage(path, manifest, content=False)))
        return sorted(found, key=lambda one: -1 if one[1] is None else one[1].serial, reverse=True)

    def latest(self) -> Path | None:
        """The checkpoint that was saved last, of those with all files in full size; None if there is none."""
        return next((path for path, _, problem in self._found() if problem is None), None)

    def steps(self) -> list[int]:
        """Steps of all checkpoints with all files in full size, in the order in which they were saved."""
        return [m.step for _, m, problem in reversed(self._found()) if m is not None and problem is None]


def save(
    path: str | Path,
    *,
    step: int = 0,
    model: nn.Module | None = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    loader: Any = None,
    extra: Any = None,
    sharded: bool = False,
    timeout: float = _TIMEOUT,
) -> Path:
    """Saves a single checkpoint; all processes have to call it. See `Checkpoints.save`.

    Args:
        path: a folder that does not exist yet.
        step: how many training steps were done.
        model: see `Checkpoints.save`, like the next five.
        optimizer: see there.
        scheduler: see there.
        scaler: see there.
        loader: see there.
        extra: see there.
        sharded: see `Checkpoints`, like the next.
        timeout: see there.

    Raises:
        CheckpointError: something is at `path`, or see `Checkpoints.save`.
    """
    ranks, final = current(timeout), Path(path).absolute()
    given = Parts(model, optimizer, scheduler, scaler, loader)

    def prepare() -> None:
        if final.exists():
            raise CheckpointError(f"{final} exists: remove it, or use markstep.checkpoint.Checkpoints for a series")
        final.parent.mkdir(parents=True, exist_ok=True)
        folders.clean(final.parent, final.name)

    ranks.first(f"saving {final}", prepare)
    saving.write(final, Manifest(step, 1, sharded, ranks.size), given, extra, ranks)
    return final


def load(
    path: str | Path,
    *,
    model: nn.Module | None = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    loader: Any = None,
    strict: bool = True,
    rng: bool = True,
    timeout: float = _TIMEOUT,
) -> Restored:
    """Loads a single checkpoint; all processes have to call it. See `Checkpoints.load`.

    Args:
        path: folder of a checkpoint.
        model: see `Checkpoints.load`, like the next six.
        optimizer: see there.
        scheduler: see there.
        scaler: see there.
        loader: see there.
        strict: see there.
        rng: see there.
        timeout: see `Checkpoints`.

    Raises:
        CheckpointError: it is damaged, or see `Checkpoints.load`.
    """
    ranks, folder = current(timeout), Path(path).absolute()
    given = Parts(model, optimizer, scheduler, scaler, loader)
    manifest: Manifest = ranks.first(f"loading {folder}", lambda: files.read_manifest(folder))
    if problem := loading.check(folder, manifest, ranks):
        raise CheckpointError(problem)
    return loading.read(folder, manifest, given, ranks, strict=strict, rng=rng)
