"""Runs one of torch_xla's scripts as `python script args...` would, with some of its constants replaced in memory.

Usage: upstream_script.py SCRIPT JSON-OBJECT [ARGUMENT ...], where the object maps pieces of source text to others.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import markstep.xla.device as device


def main(path: Path, replacements: dict[str, str]) -> None:
    """Executes the script as `__main__`.

    Raises:
        ValueError: a text to replace is not there exactly once, so the script is not the one that is expected.
    """
    source = path.read_text()
    for old, new in replacements.items():
        if source.count(old) != 1:
            raise ValueError(f"{path.name} has {old!r} {source.count(old)} times, not once: is this torch_xla 2.9.0?")
        source = source.replace(old, new)
    module = ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = module
    exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))


if __name__ == "__main__":
    _script, _replacements = Path(sys.argv[1]).resolve(), json.loads(sys.argv[2])
    sys.argv = [str(_script), *sys.argv[3:]]
    sys.path[0] = str(_script.parent)
    device.install()
    main(_script, _replacements)
