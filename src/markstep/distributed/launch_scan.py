"""Does a script train in several processes together? Its source, and that of modules beside it, says so."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Starts", "module_file", "scan"]

_LIBRARIES = frozenset(
    "accelerate colossalai composer deepspeed ignite lightning lightning_fabric pytorch_lightning smdistributed torch_xla trl"
    " torch.distributed.fsdp torch.distributed.tensor markstep.distributed".split()
)
_NAMES = frozenset(
    {"init_process_group", "init_device_mesh", "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard"}
)
_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "SMDATAPARALLEL_LOCAL_RANK"})
_STARTERS = frozenset({"spawn", "launch"})
_MOST_FILES = 500


@dataclass
class Starts:
    """What was found.

    Attributes:
        signs: why the script trains together with the other workers, such as "train.py:3 imports accelerate".
        has_mp_fn: it defines or imports `_mp_fn`.
        starts_itself: it calls `xmp.spawn` or `torch_xla.launch`.
        multiprocessing: where it calls `torch.multiprocessing.spawn`, which starts workers of its own; else empty.
    """

    signs: list[str] = field(default_factory=list)
    has_mp_fn: bool = False
    starts_itself: bool = False
    multiprocessing: str = ""

    @property
    def wants_mp_fn(self) -> bool:
        """Whether each worker has to call `_mp_fn`."""
        return self.has_mp_fn and not self.starts_itself


def module_file(name: str) -> Path | None:
    """The file that `python -m name` runs, if it is a Python file."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations:
        spec = importlib.util.find_spec(f"{name}.__main__")
    origin = spec.origin if spec is not None else None
    return Path(origin) if origin and origin.endswith(".py") else None


def scan(script: Path, root: Path | None = None) -> Starts:
    """Reads a script and the modules beside it that it imports.

    Args:
        script: the file.
        root: where its absolute imports are looked for, by default its folder.
    """
    found = Starts()
    waiting, seen = [script.resolve()], set[Path]()
    while waiting and len(seen) < _MOST_FILES:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # Python will say what is wrong with it
        _read(tree, path, found, is_script=len(seen) == 1)
        waiting += _local_imports(tree, path.parent, root or script.resolve().parent)
    return found


def _read(tree: ast.Module, path: Path, found: Starts, *, is_script: bool) -> None:
    transformers, torch_mp = False, set[str]()
    for node in ast.walk(tree):
        for name, bound in _imported(node):
            transformers |= name.split(".")[0] == "transformers"
            if name == "torch.multiprocessing":
                torch_mp.add(bound)
            if is_script and bound == "_mp_fn":
                _note(found, path, node, "has _mp_fn")
                found.has_mp_fn = True
            if library := _library(name):
                _note(found, path, node, f"imports {library}")
    if is_script:
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == "_mp_fn":
                _note(found, path, node, "has _mp_fn")
                found.has_mp_fn = True
    for node in ast.walk(tree):
        word = _word(node)
        if word in _NAMES or (transformers and word.endswith("Trainer")):
            _note(found, path, node, f"uses {word}")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in _VARIABLES:
            _note(found, path, node, f"reads {node.value}")
        if isinstance(node, ast.Call) and _word(node.func) in _STARTERS:
            found.starts_itself |= is_script
            owner = ast.unparse(node.func).rpartition(".")[0]
            if _word(node.func) == "spawn" and owner in torch_mp | {"torch.multiprocessing"}:
                found.multiprocessing = f"{path.name}:{node.lineno}"


def _note(found: Starts, path: Path, node: ast.AST, what: str) -> None:
    found.signs.append(f"{path.name}:{getattr(node, 'lineno', 1)} {what}")


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Full names that a statement imports, and what they are called afterwards."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, alias.asname or alias.name
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            prefix = f"{node.module}." if node.module and not node.level else "." * node.level
            yield f"{prefix}{alias.name}", alias.asname or alias.name


def _library(name: str) -> str:
    parts = name.split(".")
    return next((".".join(parts[:i]) for i in range(1, len(parts) + 1) if ".".join(parts[:i]) in _LIBRARIES), "")


def _word(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.name if isinstance(node, ast.alias) else ""


def _local_imports(tree: ast.Module, folder: Path, root: Path) -> list[Path]:
    names: list[tuple[Path, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(root, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = root if not node.level else folder.joinpath(*[".."] * (node.level - 1))
            module = [node.module] if node.module else []
            names += [(base, name) for name in module]
            names += [(base, ".".join([*module, alias.name])) for alias in node.names]
    return [path.resolve() for base, name in names for path in _files_of(base, name.split(".")) if path.is_file()]


def _files_of(base: Path, parts: list[str]) -> Iterator[Path]:
    for i in range(1, len(parts) + 1):
        place = base.joinpath(*parts[:i])
        yield place.with_suffix(".py")
        yield place / "__init__.py"
