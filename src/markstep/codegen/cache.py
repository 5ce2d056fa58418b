"""Compiled programs on disk: what identifies one, and when one may be trusted.

An entry is a folder that only its owner can read, with a manifest of the SHA-256 of every file. Anything unexpected (another
owner, open permissions, a missing or changed file) makes it no entry: it is removed and the program compiled again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from markstep.codegen.recipe import Recipe
from markstep.record.program import Call, Program

_MANIFEST = "manifest.json"


def key_parts(program: Program, recipe: Recipe) -> dict[str, str]:
    """Everything that the compiled program depends on, by name."""
    text = "\n".join(_text(c) for c in program.calls)
    return {
        "program": _digest(text + repr((sorted(program.done), sorted(program.live)))),
        "random numbers": recipe.rng,
        "passes": ", ".join(sorted(recipe.passes)),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "markstep": _own_source(),
        "threads": str(torch.get_num_threads()),
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {_processor()}",
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


def key_of(parts: dict[str, str]) -> str:
    """The name of the entry."""
    return _digest(json.dumps(parts, sort_keys=True))[:40]


def _text(call: Call) -> str:
    return f"{call.op.name()} {call.args!r} {call.kwargs!r} {call.outs!r} {call.writes!r}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _own_source() -> str:
    here = Path(__file__).parent
    files = sorted([*here.glob("*.py"), *here.with_name("record").glob("*.py")])
    return _digest("\n".join(f.read_text() for f in files))


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = {}
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "flags") and name.strip() not in wanted:
            wanted[name.strip()] = value.strip()
    return _digest(repr(wanted))[:16]


class Store:
    """The entries below one cache directory."""

    def __init__(self, cache_dir: Path) -> None:
        self.root = cache_dir / "programs"
        self.root.mkdir(mode=0o700, exist_ok=True)

    def find(self, key: str) -> Path | None:
        """The folder of a trustworthy entry, or None."""
        folder = self.root / key
        if not folder.exists():
            return None
        if self._is_sound(folder):
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        return None

    def put(self, key: str, parts: dict[str, str], files: Path, **facts: Any) -> Path:
        """Moves a folder of files into place, as one step."""
        sums = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files.iterdir()}
        (files / _MANIFEST).write_text(json.dumps({"key": parts, "files": sums, "facts": facts}, indent=1))
        for file in files.iterdir():
            file.chmod(0o600)
        files.chmod(0o700)
        target = self.root / key
        try:
            os.rename(files, target)
        except OSError:  # another process was first
            shutil.rmtree(files, ignore_errors=True)
        return target

    def scratch(self) -> Path:
        """A new folder on the same file system."""
        return Path(tempfile.mkdtemp(prefix=".new-", dir=self.root))

    def facts(self, folder: Path) -> dict[str, Any]:
        """What was noted when the entry was made."""
        facts: dict[str, Any] = json.loads((folder / _MANIFEST).read_text())["facts"]
        return facts

    def nearest(self, parts: dict[str, str]) -> str:
        """For a miss: in what the closest entry differs, e.g. "torch, threads"; empty when there is none."""
        best: list[str] | None = None
        for folder in self.root.iterdir():
            try:
                other = json.loads((folder / _MANIFEST).read_text())["key"]
            except (OSError, ValueError, KeyError):
                continue
            differing = [name for name in parts if other.get(name) != parts[name]]
            if "program" not in differing and (best is None or len(differing) < len(best)):
                best = differing
        return ", ".join(best or [])

    @staticmethod
    def _is_sound(folder: Path) -> bool:
        try:
            status = folder.stat()
            if status.st_uid != os.getuid() or status.st_mode & 0o077:
                return False
            manifest = json.loads((folder / _MANIFEST).read_text())
            files = manifest["files"]
            present = {f.name for f in folder.iterdir()} - {_MANIFEST}
            return present == set(files) and all(
                hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest for name, digest in files.items()
            )
        except (OSError, ValueError, KeyError, TypeError):
            return False
