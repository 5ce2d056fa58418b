"""Import names of other packages that programs for them expect."""

from __future__ import annotations

from pathlib import Path


def names_folder() -> Path:
    """The folder to put on `sys.path` so that `import torch_xla` finds Markstep's implementation."""
    return Path(__file__).resolve().parent / "names"
