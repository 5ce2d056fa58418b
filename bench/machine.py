"""Where a row was measured: processor, commit, versions."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from bench.process import ROOT


def processor() -> str:
    """Model, usable cores and memory of this machine."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), os.uname().machine)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB"


def commit() -> str:
    """Short hash of the checkout, with "+" when Markstep or the benchmark has changes that are not committed."""
    git = ["git", "-C", str(ROOT)]
    try:
        name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", "src", "bench"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name.strip() + ("+" if changed else "")


def torch_version() -> str:
    """Of the installed torch."""
    return version("torch")


def options_in_force(env: Mapping[str, str]) -> str:
    """The MARKSTEP_* variables that the caller has set, for the head of the table; empty if there are none."""
    return " ".join(f"{name}={env[name]}" for name in sorted(env) if name.startswith("MARKSTEP"))
