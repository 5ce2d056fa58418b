"""Loading weights into a model: everything is checked before anything is changed."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from markstep.checkpoint import files, sharded
from markstep.checkpoint.errors import CheckpointError
from markstep.checkpoint.prefixes import repair
from markstep.checkpoint.random_state import settled

_SHOWN = 5


@dataclass(frozen=True)
class LoadedWeights:
    """How the names of a checkpoint fitted those of a model.

    Attributes:
        missing: names of the model that the checkpoint has not; their values stayed what they were.
        unexpected: names of the checkpoint that the model has not.
        repaired: what was done to the prefixes of the names; empty if nothing.
    """

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    repaired: str = ""


@dataclass(frozen=True)
class Fit:
    """Names of a checkpoint matched with those of a model.

    Attributes:
        names: the model's name for each name in the checkpoint that it has.
        loaded: what does not match, and what was repaired.
    """

    names: dict[str, str]
    loaded: LoadedWeights


def load_weights(model: nn.Module, source: Mapping[str, Any] | str | Path, *, strict: bool = True) -> LoadedWeights:
    """Loads weights into a model, whatever wrapped the model that they were saved from.

    Prefixes (`module.`, `_orig_mod.`, `model.`) are stripped or added if then every name matches, with a warning that says
    what was done. If loading fails, the model is what it was.

    Args:
        model: on any device.
        source: a state dict, a file of `torch.save` with one, or the folder of a checkpoint.
        strict: missing and unexpected names are errors; otherwise the rest is loaded.

    Returns:
        What did not match, and what was repaired.

    Raises:
        CheckpointError: names or shapes do not match, or the source is damaged.
        TypeError: the source is no state dict.
    """
    origin, state = ("the state dict", source) if isinstance(source, Mapping) else (str(source), _read(Path(source)))
    if not isinstance(state, Mapping):
        raise TypeError(f"{origin} holds a {type(state).__name__}, not a state dict")
    with settled():
        own = model.state_dict()
        found = fit(own, shapes(state), origin=origin, strict=strict, hint=_hint(state))
        apply(model, state, found, strict=strict)
    return found.loaded


def _read(path: Path) -> Any:
    """The state dict of a model in a file or a checkpoint, on the CPU."""
    if not path.is_dir():
        return read_file(path)
    manifest = files.read_manifest(path)
    names = [n for n in manifest.files if n == "model.pt" or n.startswith(f"{sharded.FOLDER}/")]
    if not names:
        raise CheckpointError(f"{path} has no model")
    if problem := files.damage(path, manifest, names):
        raise CheckpointError(problem)
    return sharded.read_whole(path / sharded.FOLDER, "model") if manifest.sharded else read_file(path / "model.pt")


def read_file(path: Path, *, mmap: bool = True) -> Any:
    """A file of `torch.save`, without running code that may be in it; tensors on the CPU.

    Args:
        path: of the file.
        mmap: tensors are read when they are used.

    Raises:
        CheckpointError: it is damaged, or holds other types than tensors, numbers, strings and containers.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise CheckpointError(f"{path} cannot be loaded without running code that is in it: {error}") from error
    except (RuntimeError, EOFError) as error:
        raise CheckpointError(f"{path} is damaged, or not a file of torch.save: {error}") from error


def _hint(state: Mapping[str, Any]) -> str:
    inner = [k for k, v in state.items() if isinstance(v, Mapping) and v and not str(k).endswith("_extra_state")]
    return f". It holds dictionaries under {_listed(inner)}: pass the one with the weights" if inner else ""


def shapes(state: Mapping[str, Any]) -> dict[str, tuple[int, ...] | None]:
    """The shape of each tensor of a state dict; None for other values, and for parameters that have no shape yet."""
    return {k: tuple(v.shape) if isinstance(v, torch.Tensor) and not is_lazy(v) else None for k, v in state.items()}


def fit(own: Mapping[str, Any], saved: Mapping[str, tuple[int, ...] | None], *, origin: str, strict: bool, hint: str = "") -> Fit:
    """Matches a checkpoint with a model; changes nothing, warns if prefixes need repair.

    Args:
        own: the model's state dict.
        saved: shape of each tensor in the checkpoint, None for other values.
        origin: where the checkpoint is from, for messages.
        strict: missing and unexpected names are errors.
        hint: is added to that error.

    Raises:
        CheckpointError: names or shapes do not match.
    """
    repaired = repair(saved, own)
    if repaired is None:
        missing, unexpected = tuple(k for k in own if k not in saved), tuple(k for k in saved if k not in own)
        if strict:
            raise CheckpointError(_mismatch(origin, missing, unexpected) + hint)
        names, loaded = {k: k for k in saved if k in own}, LoadedWeights(missing, unexpected)
    else:
        names, loaded = repaired.names, LoadedWeights(repaired=repaired.text)
    wanted = shapes(own)
    wrong = [
        f"{new} has shape {list(saved[old] or ())} in it and {list(wanted[new] or ())} in the model"
        for old, new in names.items()
        if saved[old] is not None and wanted[new] is not None and saved[old] != wanted[new]
    ]
    if wrong:
        more = f", and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise CheckpointError(f"{origin} does not fit the model: {'; '.join(wrong[:_SHOWN])}{more}")
    if loaded.repaired:
        warnings.warn(f"{origin}: {loaded.repaired}, so that they match the model's", stacklevel=3)
    return Fit(names, loaded)


def _mismatch(origin: str, missing: Collection[str], unexpected: Collection[str]) -> str:
    parts = [
        f"{len(names)} {'name is' if len(names) == 1 else 'names are'} {kind} ({_listed(names)})"
        for kind, names in (("missing in it", missing), ("unexpected", unexpected))
        if names
    ]
    return f"{origin} does not fit the model: {' and '.join(parts)}; strict=False loads what matches"


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown}, ..."


def apply(model: nn.Module, state: Mapping[str, Any], found: Fit, *, strict: bool) -> None:
    """Copies weights into a model that `fit` has matched with them."""
    renamed: dict[str, Any] = {new: state[old] for old, new in found.names.items()}
    versions = getattr(state, "_metadata", None)
    if versions is not None:
        modules = {old.rpartition(".")[0]: new.rpartition(".")[0] for old, new in found.names.items()}
        renamed = _Versioned(renamed)
        renamed._metadata = {modules.get(old, old): version for old, version in versions.items()}
    model.load_state_dict(renamed, strict=strict)


class _Versioned(dict[str, Any]):
    """A state dict with the versions of modules, by which they know how old it is."""

    _metadata: dict[str, Any]


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, DataParallel and torch.compile."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def parameter_names(model: nn.Module | None) -> dict[torch.Tensor, str]:
    """The name of each parameter in the model without its wrapper."""
    return {} if model is None else {p: name for name, p in unwrapped(model).named_parameters()}
