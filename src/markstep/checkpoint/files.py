"""Files that survive a crash, and the manifest that says whether all of them are there and whole."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from markstep.checkpoint.errors import CheckpointError

MANIFEST = "manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of.

    Attributes:
        step: number of the training step.
        serial: grows by one with each checkpoint in a folder; the newest has the largest.
        sharded: whether model and optimizer are in `shards/`, written by all processes.
        world_size: how many processes saved it.
        forms: how the objects of each kind were given, by the kind.
        shapes: of the parameters of each group of each optimizer, by the optimizer's name.
        files: size in bytes and SHA-256 of each file, by its path in the checkpoint.
        torch: version of PyTorch that wrote it.
        format: version of this layout.
    """

    step: int
    serial: int
    sharded: bool
    world_size: int
    forms: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, list[list[list[int]]]] = field(default_factory=dict)
    files: dict[str, tuple[int, str]] = field(default_factory=dict)
    torch: str = torch.__version__
    format: int = FORMAT


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes `manifest.json`."""
    write_bytes(folder / MANIFEST, json.dumps(asdict(manifest)).encode())


def read_manifest(folder: Path) -> Manifest:
    """Reads `manifest.json`.

    Raises:
        CheckpointError: it is missing, is not whole, or was written in a layout that is newer than this one.
    """
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_bytes())
        if content["format"] > FORMAT:
            raise CheckpointError(f"{path} was written by a newer version of Markstep (format {content['format']})")
        content["files"] = {name: (int(size), str(digest)) for name, (size, digest) in content["files"].items()}
        return Manifest(**content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} is not a whole manifest: {type(error).__name__}: {error}") from error


def damage(folder: Path, manifest: Manifest, names: Iterable[str] | None = None, *, content: bool = True) -> str | None:
    """What is wrong with the files of a checkpoint, or None.

    Args:
        folder: of the checkpoint.
        manifest: of the checkpoint.
        names: the files to look at; by default all.
        content: compare checksums; otherwise only sizes, which needs no reading.
    """
    for name in manifest.files if names is None else names:
        size, digest = manifest.files[name]
        path = folder / name
        try:
            found = path.stat().st_size
            if found != size:
                return f"{path} has {found} bytes instead of {size}"
            if content and checksum(path)[1] != digest:
                return f"{path} has another content than was written (SHA-256 differs)"
        except FileNotFoundError:
            return f"{path} is missing"
        except OSError as error:
            return f"{path} cannot be read: {error}"
    return None


def checksum(path: Path) -> tuple[int, str]:
    """Size in bytes and SHA-256 of a file."""
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


class _Writer:
    """A file that is counted and hashed while it is written."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.size = 0
        self.hash = hashlib.sha256()
        self.error: OSError | None = None  # torch raises another one, which does not say why

    def write(self, data: Any) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.hash.update(data)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def write_torch(path: Path, value: Any) -> tuple[int, str]:
    """`torch.save` to a file that is on the disk when this returns; its size in bytes and SHA-256."""
    with path.open("xb") as file:
        writer = _Writer(file)
        try:
            torch.save(value, writer)  # type: ignore[arg-type]
        except RuntimeError:
            if writer.error is not None:
                raise writer.error from None
            raise
        _settle(file)
    return writer.size, writer.hash.hexdigest()


def write_bytes(path: Path, content: bytes) -> tuple[int, str]:
    """Writes a file that is on the disk when this returns; its size in bytes and SHA-256."""
    with path.open("xb") as file:
        file.write(content)
        _settle(file)
    return len(content), hashlib.sha256(content).hexdigest()


def _settle(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Puts the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
