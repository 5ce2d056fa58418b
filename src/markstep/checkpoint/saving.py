"""Writing one checkpoint: in all processes, into a temporary folder that gets its name when everything is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from markstep.checkpoint import files, optimizers, parts, random_state, sharded, values
from markstep.checkpoint.files import Manifest
from markstep.checkpoint.folders import Unfinished
from markstep.checkpoint.parts import Parts
from markstep.checkpoint.ranks import Ranks
from markstep.checkpoint.weights import parameter_names, read_file, unwrapped

RANKS = "ranks.pt"  # what differs between processes: a list, by rank


def write(final: Path, manifest: Manifest, given: Parts, extra: Any, ranks: Ranks) -> None:
    """Writes a checkpoint to a folder that does not exist yet; all processes have to call it.

    Args:
        final: the folder.
        manifest: without what follows from the objects and the files.
        given: what to save.
        extra: any value that can be loaded without running code; rank 0's is saved.
        ranks: the processes.

    Raises:
        CheckpointError: it failed in some process; nothing is left of it.
        ValueError: the processes are at different steps.
    """
    doing = f"saving {final}"
    saving = _Saving(final, given, extra, manifest.sharded, ranks)
    with random_state.settled():
        answers = ranks.together(doing, lambda: (manifest.step, saving.capture()))
        if len({step for step, _ in answers}) > 1:
            raise ValueError(f"{doing}: the processes are at different steps: {[step for step, _ in answers]}")
        manifest = replace(manifest, forms=parts.forms(given), shapes=optimizers.parameter_shapes(given.optimizer))
        try:
            folder = ranks.first(doing, lambda: saving.begin([local for _, local in answers]))
            if manifest.sharded:
                written = ranks.together(doing, lambda: saving.write_shards(folder))
                saving.files.update({name: info for one in written for name, info in one.items()})
            ranks.first(doing, lambda: saving.finish(manifest))
        except BaseException:
            saving.discard()
            raise


class _Saving:
    """One process's part in writing a checkpoint.

    Attributes:
        files: size and checksum of what is written.
    """

    def __init__(self, final: Path, given: Parts, extra: Any, shards: bool, ranks: Ranks) -> None:
        self.files: dict[str, tuple[int, str]] = {}
        self._final, self._given, self._extra, self._shards, self._ranks = final, given, extra, shards, ranks
        self._replicated: dict[str, Any] = {}
        self._sharded: dict[str, Any] = {}
        self._folder: Unfinished | None = None

    def capture(self) -> bytes:
        """Collects all state dicts and checks them; returns what only this process has."""
        given, large = self._given, {}
        if self._shards:
            sharded.check(self._ranks)
        if given.model is not None:
            large["model"] = _model_state(given.model)
            if self._shards and self._ranks.rank:
                large["model"] = _without_buffers(given.model, large["model"])
        if given.optimizer is not None and self._shards:
            large["optimizer"] = _named_states(given)
        elif given.optimizer is not None and self._ranks.rank == 0:
            large["optimizer"] = parts.states(given.optimizer)
        small = {name: parts.states(one) for name in ("scheduler", "scaler") if (one := getattr(given, name)) is not None}
        if self._extra is not None:
            small["extra"] = self._extra
        for name, value in {**large, **small}.items():
            values.checked(name, value)
            if not self._shards and any(map(sharded.is_sharded, values.tensors_of(value))):
                raise ValueError(f"the {name} is spread over several processes: save with sharded=True")
        self._sharded = large if self._shards else {}
        self._replicated = small if self._shards else {**large, **small}
        local = {"rng": random_state.capture()}
        if given.loader is not None:
            local["loader"] = parts.states(given.loader)
        return values.packed("the state of this process", local)

    def begin(self, local: list[bytes]) -> Path:
        """In rank 0: makes the temporary folder and writes everything that is not sharded."""
        self._folder = Unfinished(self._final)
        path = self._folder.path
        for name, value in {**self._replicated, RANKS.removesuffix(".pt"): [values.unpacked(one) for one in local]}.items():
            self.files[f"{name}.pt"] = files.write_torch(path / f"{name}.pt", values.on_cpu(value))
            read_file(path / f"{name}.pt")
        return path

    def write_shards(self, folder: Path) -> dict[str, tuple[int, str]]:
        """In all ranks: writes this process's part of model and optimizer; returns its files."""
        shards = folder / sharded.FOLDER
        if not sharded.write(shards, self._sharded, self._ranks):
            return {}
        own = [*shards.glob(f"__{self._ranks.rank}_*"), *([shards / ".metadata"] if self._ranks.rank == 0 else [])]
        files.sync_folder(shards)
        return {f"{sharded.FOLDER}/{path.name}": files.checksum(path) for path in own}

    def finish(self, manifest: Manifest) -> None:
        """In rank 0: makes it complete."""
        assert self._folder is not None
        files.write_manifest(self._folder.path, replace(manifest, files=self.files))
        self._folder.finish(self._final)

    def discard(self) -> None:
        """Removes what is there, if it is not complete."""
        if self._folder is not None:
            self._folder.discard()


def _model_state(model: nn.Module) -> dict[str, Any]:
    model = unwrapped(model)
    for name, module in model.named_modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise ValueError(f"{name or 'the model'} is FullyShardedDataParallel: use torch.distributed.fsdp.fully_shard")
    return model.state_dict()


def _without_buffers(model: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """A part of a state dict: statistics of batches differ between processes, and rank 0's are saved."""
    parameters = {name for name, _ in unwrapped(model).named_parameters(remove_duplicate=False)}
    return {k: v for k, v in state.items() if k in parameters or (isinstance(v, torch.Tensor) and sharded.is_sharded(v))}


def _named_states(given: Parts) -> Any:
    names = parameter_names(given.model)
    found = {key: sharded.named_state(one, names) for key, one in parts.named(given.optimizer).items()}
    return parts.like(given.optimizer, found)
