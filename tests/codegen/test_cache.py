"""Compiled programs on disk: used again, checked, and compiled again when something is wrong with them."""

import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import markstep
from markstep.codegen import jobs
from markstep.codegen.cache import Store, key_of, key_parts
from markstep.codegen.recipe import Recipe
from markstep.engine import options as options_module
from markstep.engine import report
from markstep.engine.trial import Trial
from markstep.record import Program

pytestmark = pytest.mark.compile


@pytest.fixture(autouse=True)
def _always_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "next", lambda self: "predict")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache directory that holds the one program of `train`; the C++ part is taken over."""
    yield tmp_path_factory.mktemp("cache")


def train(cache: Path, steps: int = 5) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    x, y = torch.randn(7, 6), torch.randn(7, 1)

    def step() -> torch.Tensor:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        return loss.detach()

    run = markstep.compile(step, background=False, cache_dir=cache)
    return [float(run()) for _ in range(steps)]


def entry(cache: Path) -> Path:
    found = [f for f in (cache / "programs").iterdir() if not f.name.startswith(".")]
    assert len(found) == 1
    return found[0]


def test_second_use_compiles_nothing(cache: Path) -> None:
    first = train(cache)
    assert not report.current().programs[0].cached
    assert entry(cache).stat().st_mode & 0o077 == 0
    assert all(f.stat().st_mode & 0o077 == 0 for f in entry(cache).iterdir())
    report.reset()
    assert train(cache) == first
    assert report.current().programs[0].cached
    assert report.current().compiled_steps >= 3


@pytest.mark.parametrize("damage", ["content", "missing", "extra", "manifest", "open to others"])
def test_a_damaged_entry_is_compiled_again(cache: Path, damage: str) -> None:
    want = train(cache)
    folder = entry(cache)
    kernel = next(folder.glob("*.so"))
    if damage == "content":
        changed = kernel.read_bytes()[:-1] + b"!"
        kernel.unlink()  # it is mapped into this process, which must not see the change
        kernel.write_bytes(changed)
    elif damage == "missing":
        kernel.unlink()
    elif damage == "extra":
        (folder / "more.py").write_text("raise SystemExit")
    elif damage == "manifest":
        (folder / "manifest.json").write_text("{")
    else:
        folder.chmod(0o755)
    report.reset()
    assert train(cache) == want
    assert not report.current().programs[0].cached
    assert report.current().compiled_steps >= 3


def test_a_foreign_entry_is_not_trusted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(cache)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert Store(cache).find(entry(cache).name) is None


def test_an_entry_that_does_not_load_is_compiled_again(cache: Path) -> None:
    """Content and manifest agree, but the code is broken."""
    import hashlib

    want = train(cache)
    folder = entry(cache)
    source = next(folder.glob("piece*.py"))
    source.write_text("raise RuntimeError('no')")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][source.name] = hashlib.sha256(source.read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    report.reset()
    assert train(cache) == want
    assert report.current().compiled_steps >= 3


def test_a_miss_says_what_differs(tmp_path: Path) -> None:
    store, parts = Store(tmp_path), key_parts(Program(()), Recipe("hash", frozenset()))
    store.put(key_of(parts), parts, store.scratch())
    assert store.find(key_of(parts)) is not None
    assert store.nearest(parts | {"torch": "1.0", "threads": "99"}) == "torch, threads"
    assert store.nearest(parts | {"program": "other"}) == ""


@pytest.mark.skipif(os.getuid() == 0 and not hasattr(os, "setuid"), reason="needs another user")
def test_an_unwritable_directory_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "file"
    file.write_text("not a directory")
    options_module._prepare.cache_clear()
    with caplog.at_level(logging.WARNING, logger="markstep"):
        losses = train(file / "below")
    assert len(losses) == 5 and report.current().compiled_steps >= 2
    assert any("cache directory cannot be used" in w and "MARKSTEP_CACHE_DIR" in w for w in report.current().warnings)


def test_directories_are_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "cache"
    options_module._prepare(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_another_process_uses_it(cache: Path) -> None:
    train(cache)
    code = (
        "import sys; sys.path[:0] = [sys.argv[1]]\n"
        "from pathlib import Path\n"
        "from tests.codegen.test_cache import train\n"
        "from markstep.engine.trial import Trial\n"
        "Trial.next = lambda self: 'predict'\n"
        "import torch; torch.set_num_threads(int(sys.argv[3]))\n"
        "train(Path(sys.argv[2])); import markstep; p = markstep.explain().programs[0]; print(p.cached, p.runs)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(Path(__file__).parents[2]), str(cache), str(torch.get_num_threads())],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.stdout.split() == ["True", "3"], done.stderr


def test_a_directory_with_a_space_in_its_name(tmp_path: Path) -> None:
    jobs.stop()  # the child has its folder from the first request
    losses = train(tmp_path / "John Doe's cache")
    assert report.current().programs[-1].state == "ready" and report.current().programs[-1].runs
    assert losses[-1] < losses[0]
    folder = Path(str(jobs._scratch))
    assert folder.is_dir()
    jobs.stop()
    assert not folder.exists()
