"""Private names of torch: each must exist, and none may be used that is not listed."""

import re
from pathlib import Path

import pytest

from markstep.private_names import NAMES, resolve

_SOURCES = [p for p in (Path(__file__).parents[1] / "src" / "markstep").rglob("*.py") if p.name != "private_names.py"]


@pytest.mark.parametrize("name", NAMES)
def test_exists(name: str) -> None:
    assert resolve(name) is not None


def test_a_missing_one_is_named() -> None:
    with pytest.raises(AttributeError, match=r"torch has no torch\._C\._gone any more"):
        resolve("torch._C._gone")


def test_all_that_are_used_are_listed() -> None:
    known = {part for name in NAMES for part in name.split(".")}
    for source in _SOURCES:
        text = source.read_text()
        for path in re.findall(r"\btorch\.[\w.]*", text):
            private = [p for p in path.split(".")[1:] if p.startswith("_") and not p.startswith("__")]
            assert set(private) <= known, f"{source.name} uses {path}: add it to private_names.py"
