"""Write requirements.lock: exact pins of Markstep with all its extras, for one release of PyTorch.

Usage: python tools/lock.py [TORCH_VERSION]

pip resolves pyproject.toml without installing anything and reports what it would install. Without an argument the
release of PyTorch that the lock pins now is kept; every other package moves to the newest version that fits.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
HEADER = """\
# The environment that Markstep is developed and tested in. Written by `make lock`; do not edit.
# PyTorch's CUDA packages are left out: a CUDA build of PyTorch pins its own, a CPU build needs none.
"""
CUDA = re.compile(r"(nvidia|cuda|triton)(-|$)")


def pinned_torch() -> str:
    """The release of PyTorch in the present lock."""
    match = re.search(r"^torch==(\S+)$", LOCK.read_text(), re.MULTILINE)
    if match is None:
        sys.exit(f"{LOCK.name} pins no torch; name the version: python tools/lock.py 2.13.0")
    return match[1]


def resolve(torch: str) -> dict[str, str]:
    """Names and versions of everything that pip would install for all extras with this release of PyTorch."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    report = subprocess.run([*pip, f"torch=={torch}", f"{ROOT}[hf,lightning,dev]"], check=True, stdout=subprocess.PIPE, text=True)
    packages = (item["metadata"] for item in json.loads(report.stdout)["install"])
    return {re.sub(r"[-_.]+", "-", p["name"]).lower(): p["version"].partition("+")[0] for p in packages}


def main() -> None:
    versions = resolve(sys.argv[1] if len(sys.argv) > 1 else pinned_torch())
    del versions["markstep"]
    pins = [f"{name}=={version}\n" for name, version in sorted(versions.items()) if not CUDA.match(name)]
    LOCK.write_text(HEADER + "".join(pins))
    print(f"{LOCK.name}: {len(pins)} packages, torch {versions['torch']}")


if __name__ == "__main__":
    main()
