"""Checkpoints that are not whole are recognised, and what fails in the middle leaves nothing behind."""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.workers import CONTEXT
from torch import nn

from markstep import checkpoint
from markstep.checkpoint import CheckpointError, Checkpoints, files, folders
from markstep.checkpoint.folders import Unfinished


def filled(value: float) -> nn.Linear:
    model = nn.Linear(8, 8)
    for p in model.parameters():
        nn.init.constant_(p, value)
    return model


def series(folder: Path, steps: int, **options: Any) -> Checkpoints:
    checkpoints = Checkpoints(folder, **options)
    for step in range(1, steps + 1):
        checkpoints.save(step, model=filled(step), extra=step)
    return checkpoints


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [shorten, flip, Path.unlink])
@pytest.mark.parametrize(
    ("sharded", "name"),
    [(False, "model.pt"), (False, "ranks.pt"), (False, "extra.pt"), (True, "shards/.metadata"), (True, "shards/__0_0.distcp")],
)
def test_a_damaged_file_is_named_and_the_checkpoint_before_it_loads(
    tmp_path: Path, harm: Callable[[Path], None], sharded: bool, name: str
) -> None:
    checkpoints = series(tmp_path, 3, sharded=sharded)
    damaged = tmp_path / "step-00000003" / name
    harm(damaged)
    model = filled(0)
    with pytest.warns(UserWarning, match=f"{damaged} .*passed over"):
        restored = checkpoints.load(model=model)
    assert restored is not None and restored.step == restored.extra == 2 and model.weight.unique().tolist() == [2]
    with pytest.raises(CheckpointError, match=str(damaged)):
        checkpoint.load(tmp_path / "step-00000003", model=model)
    if name != "ranks.pt" and name != "extra.pt":
        with pytest.raises(CheckpointError, match=str(damaged)):
            checkpoint.load_weights(model, tmp_path / "step-00000003")
    assert model.weight.unique().tolist() == [2]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff", b'{"format": 1, "files": {}}'])
def test_a_damaged_manifest(tmp_path: Path, content: bytes) -> None:
    checkpoints = series(tmp_path, 2)
    (tmp_path / "step-00000002" / "manifest.json").write_bytes(content)
    with pytest.warns(UserWarning, match="step-00000002/manifest.json is not a whole manifest"):
        restored = checkpoints.load()
    assert restored is not None and restored.step == 1 and checkpoints.steps() == [1]


def test_a_newer_format(tmp_path: Path) -> None:
    checkpoints = series(tmp_path, 1)
    path = tmp_path / "step-00000001" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99, "something": "new"}))
    with (
        pytest.warns(UserWarning, match="newer version of Markstep"),
        pytest.raises(CheckpointError, match="no whole checkpoint"),
    ):
        checkpoints.load()


def test_all_damaged_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    checkpoints = series(tmp_path, 2)
    for step in (1, 2):
        flip(tmp_path / f"step-0000000{step}" / "model.pt")
    with pytest.warns(UserWarning, match="SHA-256"), pytest.raises(CheckpointError, match="has no whole checkpoint"):
        checkpoints.load()


def test_damaged_ones_do_not_count_as_kept(tmp_path: Path) -> None:
    checkpoints = series(tmp_path, 3, keep=3)
    (tmp_path / "step-00000003" / "model.pt").unlink()
    (tmp_path / "step-00000002" / "manifest.json").unlink()
    checkpoints.save(4)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000001", "step-00000004"]


def failing(monkeypatch: pytest.MonkeyPatch, name: str, at: int) -> list[int]:
    """Makes the call number `at` of a function of `os` fail; returns a list that counts calls."""
    original, calls = getattr(os, name), [0]

    def fail(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*args, **kwargs)

    monkeypatch.setattr(os, name, fail)
    return calls


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("name", ["fsync", "rename", "mkdir"])
def test_wherever_the_disk_fails_the_older_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, sharded: bool
) -> None:
    checkpoints = series(tmp_path, 1, keep=1, sharded=sharded)
    failures = 0
    while True:
        with monkeypatch.context() as patch:
            calls = failing(patch, name, failures + 1)
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("error")
                    checkpoints.save(2, model=filled(2), extra=2)
            except CheckpointError as error:
                assert "No space left on device" in str(error)
            except UserWarning as warning:  # only what is old could not be removed
                assert "step-00000001 could not be removed" in str(warning)
            if calls[0] <= failures:
                break
        failures += 1
        model, restored = filled(0), checkpoints.load()
        assert restored is not None and restored.extra == restored.step
        checkpoint.load(restored.path, model=model)
        assert model.weight.unique().tolist() == [restored.step]
        assert not list(tmp_path.glob(".saving-*"))
    assert failures >= {"fsync": 6, "rename": 2, "mkdir": 1}[name]
    assert checkpoints.steps() == [2] and len(list(tmp_path.iterdir())) == 1


def test_a_full_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real error of the system call, through torch's own writer."""
    import resource
    import signal

    checkpoints = series(tmp_path, 1)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="File too large"):
            checkpoints.save(2, model=nn.Linear(300, 300))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


def test_a_folder_without_permission(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="Not a directory|File exists"):
        Checkpoints(tmp_path / "file").save(1)


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def seen_fsync(descriptor: int) -> None:
        events.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def seen_rename(old: Path, new: Path) -> None:
        events.append(f"rename {Path(new).name}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(os, "rename", seen_rename)
    for sharded in (False, True):
        events.clear()
        final = Checkpoints(tmp_path, sharded=sharded).save(int(sharded), model=filled(1), extra=1)
        named = events.index(f"rename {final.name}")
        names = [
            Path(e).relative_to(next(tmp_path.parent.glob(tmp_path.name))).parts[1:] for e in events[:named] if "rename" not in e
        ]
        written = {"/".join(parts) for parts in names}
        there = {str(p.relative_to(final)) for p in final.rglob("*")}
        assert there - {"shards/.metadata"} <= written and "" in written, there - written
        assert not sharded or "shards/.metadata.tmp" in written
        assert str(tmp_path) in events[named + 1 :]


def hold(folder: str, pipe: Any) -> None:
    Unfinished(Path(folder) / "step-00000009")
    pipe.send("locked")
    pipe.recv()


def test_what_a_dead_process_has_left_is_cleaned_up(tmp_path: Path) -> None:
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=hold, args=(str(tmp_path), theirs), daemon=True)
    process.start()
    try:
        assert ours.poll(60) and ours.recv() == "locked"
        (tmp_path / ".deleting-step-00000001-x").mkdir()
        (tmp_path / ".saving-other").mkdir()
        checkpoints = series(tmp_path, 1)
        assert len(list(tmp_path.glob(".saving-step-00000009-*"))) == 1, "the process is alive"
    finally:
        process.kill()
        process.join()
    checkpoints.save(2)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".saving-other", "step-00000001", "step-00000002"]


def test_without_locks_only_old_folders_are_cleaned_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*args: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", unsupported)
    (tmp_path / ".saving-step-new").mkdir()
    (tmp_path / ".saving-step-old").mkdir()
    os.utime(tmp_path / ".saving-step-old", (1, 1))
    folders.clean(tmp_path, "step-")
    assert [p.name for p in tmp_path.iterdir()] == [".saving-step-new"]


def test_removing_is_crash_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = series(tmp_path, 1, keep=1)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)  # as if killed before it has removed anything
        checkpoints.save(2, model=filled(2))
    assert checkpoints.steps() == [2]
    assert [p.name[:24] for p in tmp_path.glob(".*")] == [".deleting-step-00000001-"]
    checkpoints.save(3, model=filled(3))
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000003"]


def test_checksums_are_those_of_the_files(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path / "a", model=nn.Linear(300, 300))
    manifest = files.read_manifest(path)
    assert {p.name for p in path.iterdir()} == {*manifest.files, "manifest.json"}
    assert all(files.checksum(path / name) == info for name, info in manifest.files.items())
    assert torch.load(path / "model.pt", weights_only=True).keys() == {"weight", "bias"}
