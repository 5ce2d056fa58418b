"""The repository is consistent: version, pins and the README agree with each other and with the package."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import markstep

ROOT = Path(__file__).resolve().parent.parent


def project() -> dict[str, Any]:
    """The [project] table of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def locked_versions() -> dict[str, str]:
    """Package names and the versions that requirements.lock pins them to."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pins}


def readme_blocks() -> list[tuple[int, str]]:
    """Line number and code of every block of README.md that is marked as Python."""
    readme = (ROOT / "README.md").read_text()
    blocks = re.finditer(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    return [(readme.count("\n", 0, block.start(1)) + 1, block[1]) for block in blocks]


def test_version() -> None:
    assert markstep.__version__ == project()["version"]


def test_lock_pins_the_supported_torch() -> None:
    assert locked_versions()["torch"] == "2.13.0"


def test_lock_satisfies_pyproject() -> None:
    extras = project()["optional-dependencies"].values()
    wanted = [Requirement(line) for lines in [project()["dependencies"], *extras] for line in lines]
    pins = locked_versions()
    assert [str(r) for r in wanted if pins[canonicalize_name(r.name)] not in r.specifier] == []


def test_readme_names_the_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme


def test_readme_blocks_compile() -> None:
    blocks = readme_blocks()
    assert blocks, "README.md shows no Python"
    for line, code in blocks:
        compile("\n" * (line - 1) + code, "README.md", "exec")  # a SyntaxError then names the line of the README


def test_first_readme_block_runs(tmp_path: Path) -> None:
    script = tmp_path / "readme.py"
    script.write_text(readme_blocks()[0][1])
    result = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "MARKSTEP_BACKEND": "interpreter"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout + result.stderr
