"""Makes the import names of other products findable."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

_NAMES = str(Path(__file__).with_name("names"))


def expose_torch_xla(*, instead_of_real: bool = False) -> bool:
    """From now on `import torch_xla` gives Markstep's, also in child processes; a real torch_xla is left alone.

    Args:
        instead_of_real: put Markstep's before one that is installed.

    Returns:
        False when an installed torch_xla is found first.

    Raises:
        RuntimeError: another torch_xla is imported already.
    """
    loaded = sys.modules.get("torch_xla")
    if loaded is not None and not str(loaded.__file__).startswith(_NAMES):
        if instead_of_real:
            raise RuntimeError("another torch_xla is imported already: call markstep.install_torch_xla() before")
        return False
    if instead_of_real:
        _add(first=True)
    elif _NAMES not in sys.path:
        _add(first=False)
    importlib.invalidate_caches()
    return _found("torch_xla", loaded)


def expose_smdistributed() -> bool:
    """From now on `import smdistributed.dataparallel` gives Markstep's, also in child processes; a real one is left alone.

    torch_xla becomes importable, too, as both lie in one folder.

    Returns:
        False when an installed one is found first.
    """
    loaded = sys.modules.get("smdistributed.dataparallel")
    if _NAMES not in sys.path:
        _add(first=False)
    importlib.invalidate_caches()
    try:
        return _found("smdistributed.dataparallel", loaded)
    except ImportError:  # a real smdistributed without this part
        return False


def _found(name: str, loaded: ModuleType | None) -> bool:
    found = importlib.util.find_spec(name) if loaded is None else loaded.__spec__
    return found is not None and str(found.origin).startswith(_NAMES)


def _add(*, first: bool) -> None:
    sys.path[:] = [p for p in sys.path if p != _NAMES]
    others = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != _NAMES]
    sys.path.insert(0, _NAMES) if first else sys.path.append(_NAMES)
    os.environ["PYTHONPATH"] = os.pathsep.join([_NAMES, *others] if first else [*others, _NAMES])
