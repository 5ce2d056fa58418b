"""Without a C++ compiler training goes on eagerly, with one warning that names the cause and the fix."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from markstep.engine import region, report
from markstep.engine.options import Options
from markstep.record import native

pytestmark = pytest.mark.slow  # processes that import much

_LOOP = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())


def train_step(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss
"""
_PLAIN = _LOOP + "losses = [train_step(torch.randn(3, 4)).item() for _ in range(8)]\n"
_DOORS = {
    "compile": _LOOP
    + "import markstep\ntrain = markstep.compile(train_step)\nother = markstep.compile(lambda x: train_step(x))\n"
    + "losses = [(train, other)[i % 2](torch.randn(3, 4)).item() for i in range(8)]\n",
    "step": _LOOP
    + "import markstep\nlosses = []\nfor _ in range(8):\n    with markstep.step():\n"
    + "        losses.append(train_step(torch.randn(3, 4)).detach())\nlosses = [x.item() for x in losses]\n",
    "run": _PLAIN,
}
_SHOW = "print(losses)\n"
_REPORT = """
import markstep
report = markstep.explain()
print(len(report.warnings), report.compiled_steps, len(report.programs))
"""
_RUN = "import sys; from markstep.cli import main; sys.exit(main())"


def _environment(folder: Path, compiler: str, **variables: str) -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("CXX", "CC")}
    environment |= {"MARKSTEP_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1", **variables}
    if compiler == "absent":
        (folder / "bin").mkdir()
        environment["PATH"] = str(folder / "bin")
    elif compiler == "missing":
        environment["CXX"] = str(folder / "nowhere" / "g++")
    elif compiler == "nothing":  # not even the tools that would say why
        (folder / "bin").mkdir()
        environment |= {"PATH": str(folder / "bin"), "CXX": str(folder / "nowhere" / "g++")}
    else:
        broken = folder / "g++"
        broken.write_text("#!/bin/sh\necho 'internal compiler error: out of luck' >&2\nexit 1\n")
        broken.chmod(0o700)
        environment["CXX"] = str(broken)
    return environment


def test_threads_say_it_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also when a thread asks while another one's build fails, or just after it failed."""
    asked = threading.Barrier(4)

    def fail(cache: Path) -> None:
        time.sleep(0.05)
        raise native.NativeUnavailable("out of luck")

    def ask(background: bool) -> None:
        asked.wait()
        for _ in range(20):
            assert region.hot_path(Options(cache_dir=tmp_path, background=background)) is None
            time.sleep(0.005)

    monkeypatch.setattr(native, "load", fail)
    monkeypatch.setattr(native, "is_built", lambda cache: False)
    for background in (True, False):
        monkeypatch.setattr(region, "_broken", None)
        before = len(report.current().warnings)
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(ask, background) for _ in range(4)]:
                done.result()
        assert len(report.current().warnings) == before + 1


@pytest.mark.parametrize(
    ("door", "compiler", "background"),
    [
        ("compile", "absent", "1"),
        ("compile", "missing", "0"),
        ("step", "broken", "0"),
        ("step", "absent", "0"),
        ("run", "absent", "1"),
        ("run", "missing", "1"),
        ("step", "nothing", "1"),
    ],
)
def test_training_goes_on(door: str, compiler: str, background: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    wait = "import time; time.sleep(0.3)\n" if background == "1" else ""  # let the background builder speak
    script.write_text(_DOORS[door] + _SHOW + wait + _REPORT)
    command = [sys.executable, "-c", _RUN, "run", str(script)] if door == "run" else [sys.executable, str(script)]
    environment = _environment(tmp_path, compiler, MARKSTEP_BACKGROUND=background)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    losses, figures = done.stdout.splitlines()
    native: dict[str, Any] = {}
    exec(_PLAIN, native)
    assert losses == str(native["losses"])
    assert figures == "1 0 0"
    assert done.stderr.count("training goes on eagerly") == 1
    cause, fix = {
        "absent": ("no C++ compiler was found", "install g++"),
        "missing": (f"{tmp_path}/nowhere/g++", "CXX"),
        "nothing": (f"{tmp_path}/nowhere/g++", "CXX"),
        "broken": ("internal compiler error: out of luck", "CXX"),
    }[compiler]
    assert cause in done.stderr and fix in done.stderr
    assert "Traceback" not in done.stderr
