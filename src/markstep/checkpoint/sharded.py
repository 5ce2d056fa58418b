"""Model and optimizers through torch.distributed.checkpoint: each process writes and reads its own part."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from markstep.checkpoint import values
from markstep.checkpoint.errors import CheckpointError
from markstep.checkpoint.ranks import Ranks

FOLDER = "shards"
Flat = dict[str, Any]


def check(ranks: Ranks) -> None:
    """Checks that torch.distributed.checkpoint can connect the processes.

    Raises:
        ValueError: only the xla device does.
    """
    if ranks.size > 1 and ranks.group is None:
        raise ValueError("sharded checkpoints of several processes need torch.distributed.init_process_group")


def write(folder: Path, state: dict[str, Any], ranks: Ranks) -> bool:
    """Writes a nested state dict; all processes have to call it.

    Returns:
        Whether all processes could. Only those that could not raise.

    Raises:
        OSError: this process could not write its part.
    """
    with _alone_is_fine(), _own_failure(ranks):
        dcp.save(
            values.on_cpu(state, only="xla"),
            storage_writer=FileSystemWriter(folder, sync_files=True),
            process_group=ranks.group,
            no_dist=ranks.size == 1,
        )
        return True
    return False


@contextmanager
def _own_failure(ranks: Ranks) -> Iterator[None]:
    """Replaces the error that tells each process about the failures of all by this process's own."""
    try:
        yield
    except CheckpointException as error:
        if (own := error.failures.get(ranks.rank)) is not None:
            raise own[0] from None
        if not error.failures:
            raise CheckpointError(str(error)) from error


@contextmanager
def _alone_is_fine() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        yield


class Index:
    """What is in a folder of torch.distributed.checkpoint.

    Attributes:
        paths: for each flat key the keys on the way to it in the nested state dict.
        shapes: of each tensor by its flat key; None for other values.
    """

    def __init__(self, folder: Path) -> None:
        try:
            found = _Reader(folder).read_metadata()
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise CheckpointError(f"{folder / '.metadata'} cannot be read: {error}") from error
        self._folder = folder
        self._entries = found.state_dict_metadata
        self.paths: dict[str, tuple[Any, ...]] = {k: tuple(p) for k, p in (found.planner_data or {}).items()}
        self.shapes = {
            k: tuple(e.size) if isinstance(e, dcp_metadata.TensorStorageMetadata) else None for k, e in self._entries.items()
        }

    def under(self, *path: str) -> dict[str, tuple[Any, ...]]:
        """Flat keys of what is below a path, each with the rest of its own."""
        return {k: p[len(path) :] for k, p in self.paths.items() if p[: len(path)] == path}

    def empty(self, key: str, like: torch.Tensor | None = None) -> Any:
        """A place on the CPU for the value of a flat key; laid out over processes as `like` is."""
        entry = self._entries[key]
        if not isinstance(entry, dcp_metadata.TensorStorageMetadata):
            return None
        if like is not None and is_sharded(like) and like.shape == entry.size:
            return torch.empty_like(like, dtype=entry.properties.dtype, requires_grad=False)
        if like is not None and is_sharded(like) and len(entry.size):
            raise CheckpointError(
                f"{key} has shape {list(entry.size)}, but belongs to a sharded parameter of shape {list(like.shape)}: how it "
                "was cut into parts is not known"
            )
        return torch.empty(entry.size, dtype=entry.properties.dtype)

    def read(self, places: Flat, ranks: Ranks) -> Flat:
        """Reads values into places that `empty` has made; all processes of `ranks` have to call it."""
        with _alone_is_fine(), _own_failure(ranks):
            dcp.load(
                places,
                storage_reader=_Reader(self._folder),
                planner=_Planner(),
                process_group=ranks.group,
                no_dist=ranks.size == 1,
            )
        return places


def read_whole(folder: Path, *path: str) -> dict[str, Any]:
    """What is below a path, read by this process alone, with whole tensors on the CPU; keys are one level deep."""
    index = Index(folder)
    rest = index.under(*path)
    found = index.read({key: index.empty(key) for key in rest}, Ranks(0, 1))
    return {".".join(map(str, rest[key])): value for key, value in found.items()}


def is_sharded(t: torch.Tensor) -> bool:
    """Whether other processes have other parts of it."""
    if not torch.distributed.is_available():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(t, DTensor)


def named_state(optimizer: Any, names: Mapping[torch.Tensor, str]) -> dict[str, Any]:
    """The state dict of an optimizer with names of parameters in place of their numbers.

    Args:
        optimizer: of torch.
        names: of the model's parameters.

    Raises:
        ValueError: it has parameters that are not the model's.
    """
    by_number = _numbered(optimizer, names)
    state = optimizer.state_dict()
    groups = [{**g, "params": [by_number[n] for n in g["params"]]} for g in state["param_groups"]]
    return {"state": {by_number[n]: s for n, s in state["state"].items()}, "param_groups": groups}


def _numbered(optimizer: Any, names: Mapping[torch.Tensor, str]) -> dict[int, str]:
    found: dict[int, str] = {}
    for i, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            if p not in names:
                raise ValueError(
                    f"group {i} of the optimizer has a parameter of shape {list(p.shape)} that is not in the model: with "
                    "sharded=True the state of optimizers is stored by the names of the model's parameters. Make it part of "
                    "the model, or use sharded=False"
                )
            found[len(found)] = names[p]
    return found


def numbered_state(optimizer: Any, names: Mapping[torch.Tensor, str], saved: Mapping[str, Any]) -> dict[str, Any]:
    """What `named_state` has made, as a state dict for an optimizer whose groups have the same parameters.

    Raises:
        CheckpointError: its groups have other parameters.
    """
    by_number = _numbered(optimizer, names)
    numbers = {name: n for n, name in by_number.items()}
    own = [[names[p] for p in g["params"]] for g in optimizer.param_groups]
    theirs = [list(g["params"]) for g in saved["param_groups"]]
    if [sorted(g) for g in own] != [sorted(g) for g in theirs]:
        raise CheckpointError(
            f"the optimizer has groups of {[len(g) for g in own]} parameters, the checkpoint of {[len(g) for g in theirs]}, "
            "or other parameters in them"
        )
    groups = [{**g, "params": [numbers[n] for n in o]} for g, o in zip(saved["param_groups"], own, strict=True)]
    return {"state": {numbers[n]: s for n, s in saved["state"].items()}, "param_groups": groups}


class _Planner(DefaultLoadPlanner):
    """Unpickles values that are no tensors without running code."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        self.original_state_dict[read_item.dest_index.fqn] = torch.load(value, map_location="cpu", weights_only=True)


class _Reader(FileSystemReader):
    """Unpickles the metadata without running code."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp_metadata.Metadata:
        with (Path(self.path) / ".metadata").open("rb") as file:
            found: dcp_metadata.Metadata = _MetadataUnpickler(file).load()
        if getattr(found, "storage_meta", None) is None:
            found.storage_meta = dcp_metadata.StorageMeta()
        found.storage_meta.load_id = self.load_id  # type: ignore[union-attr]
        return found


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if self._harmless(module, name) else None
        if found is None:
            raise pickle.UnpicklingError(f"it holds {module}.{name}, which is not part of a checkpoint's metadata")
        return found

    @staticmethod
    def _harmless(module: str, name: str) -> bool:
        """Names of data: classes that describe what is stored, and torch's constants."""
        if "." in name:
            return False
        if module == dcp_metadata.__name__:
            return isinstance(getattr(dcp_metadata, name, None), type)
        if module == "torch":
            return name == "Size" or isinstance(getattr(torch, name, None), torch.dtype)
        if module in ("pathlib", "pathlib._local"):
            return name in ("PosixPath", "PurePosixPath")
        return (module, name) in {
            ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
            ("torch.serialization", "_get_layout"),
            ("collections", "OrderedDict"),
        }
