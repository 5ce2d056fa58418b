"""Several processes save and load together: all get to know what happens in one, and nothing hangs."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.training import Training
from tests.checkpoint.workers import Died, run
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import markstep
from markstep.checkpoint import CheckpointError, Checkpoints, load, load_weights

pytestmark = pytest.mark.slow


def shard(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    fully_shard(model[0], mesh=mesh)  # type: ignore[index]
    return fully_shard(model, mesh=mesh)


def training(seed: int, rank: int, *, fsdp: bool = False) -> Training:
    ranks = torch.distributed.get_world_size()
    return Training(seed, ranks=ranks, rank=rank, wrap=shard if fsdp else DistributedDataParallel)


def whole(model: nn.Module) -> list[torch.Tensor]:
    return [t.full_tensor() if hasattr(t, "full_tensor") else t for t in model.state_dict().values()]


def resume(rank: int, folder: str, sharded: bool, fsdp: bool) -> tuple[list[float], list[float], Any]:
    first, wanted = training(1, rank, fsdp=fsdp), []
    random.seed(rank)
    for loss in first.losses(12):
        wanted.append(loss)
        if first.step == 7:
            Checkpoints(folder, sharded=sharded).save(7, **first.parts())
            drawn = random.random()
    second = training(2, rank, fsdp=fsdp)
    restored = Checkpoints(folder).load(**second.parts())
    assert restored is not None
    second.step = restored.step
    assert random.random() == drawn
    got = list(second.losses(12))
    same = [torch.equal(a, b) for a, b in zip(whole(first.model), whole(second.model), strict=True)]
    assert all(same) or (fsdp and rank == 1 and all(same[:4])), "FSDP leaves each rank its own statistics of batches"
    return wanted[7:], got, torch.get_rng_state()


@pytest.mark.parametrize(("sharded", "fsdp"), [(False, False), (True, False), (True, True)])
def test_all_ranks_resume_with_the_same_bits(tmp_path: Path, sharded: bool, fsdp: bool) -> None:
    answers = run(resume, str(tmp_path / "c"), sharded, fsdp, size=2, folder=tmp_path)
    for wanted, got, _ in answers:
        assert got == wanted
    assert not torch.equal(answers[0][2], answers[1][2]), "each rank has its own random numbers"
    names = {p.name for p in (tmp_path / "c" / "step-00000007" / "shards").glob("*.distcp")}
    assert names == ({"__0_0.distcp", "__1_0.distcp"} if sharded else set())


def save_once(rank: int, folder: str, sharded: bool, fsdp: bool) -> list[torch.Tensor]:
    one = training(1, rank, fsdp=fsdp)
    list(one.losses(3))
    Checkpoints(folder, sharded=sharded).save(3, **one.parts(), extra=rank)
    return whole(one.model)


def load_once(rank: int, folder: str, fsdp: bool) -> tuple[list[torch.Tensor], list[str], int, float]:
    torch.manual_seed(9)
    one = training(2, rank, fsdp=fsdp)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        restored = Checkpoints(folder).load(**one.parts())
    assert restored is not None and restored.extra == 0
    assert one.optimizer.state[next(iter(one.model.parameters()))]["step"] == 3
    list(one.losses(2))
    return whole(one.model), [str(w.message) for w in seen], one.loader.batches, torch.rand(1).item()


@pytest.mark.parametrize(("sharded", "fsdp", "size"), [(False, False, 1), (False, False, 3), (True, True, 1), (True, True, 3)])
def test_another_number_of_processes(tmp_path: Path, sharded: bool, fsdp: bool, size: int) -> None:
    run(save_once, str(tmp_path / "c"), sharded, fsdp, size=2, folder=tmp_path)
    answers = run(load_once, str(tmp_path / "c"), fsdp, size=size, folder=tmp_path)
    told = [text for _, texts, _, _ in answers for text in texts if "was saved by 2 processes" in text]
    assert len(told) == 1 and f"is loaded by {size}" in told[0]
    assert len({random_number for *_, random_number in answers}) == size


def test_a_sharded_model_is_loaded_by_one_process_without_torch_distributed(tmp_path: Path) -> None:
    wanted, _ = run(save_once, str(tmp_path / "c"), True, True, size=2, folder=tmp_path)
    single = Training(5)
    with pytest.warns(UserWarning, match="saved by 2 processes and is loaded by 1"):
        load(tmp_path / "c" / "step-00000003", model=single.model, optimizer=single.optimizer)
    again = Training(6)
    load_weights(again.model, tmp_path / "c" / "step-00000003")
    for model in (single.model, again.model):
        assert all(torch.equal(a, b) for a, b in zip(wanted, model.state_dict().values(), strict=True))
    assert len(single.optimizer.state) == 6


def fail(rank: int, folder: str, sharded: bool, culprit: int, step: int) -> str:
    """One rank's disk is full from some call on; whether the others get to know, and what is left."""
    checkpoints = Checkpoints(folder, sharded=sharded, keep=1)
    model = DistributedDataParallel(nn.Linear(4, 4))
    checkpoints.save(step, model=model)
    original = os.fsync

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if rank == culprit:
        os.fsync = full  # type: ignore[assignment]
    try:
        checkpoints.save(step + 1, model=model)
    except CheckpointError as error:
        return str(error)
    finally:
        os.fsync = original
    return "no error"


@pytest.mark.parametrize(("sharded", "culprit"), [(False, 0), (True, 0), (True, 1)])
def test_an_error_in_one_rank_is_raised_in_all(tmp_path: Path, sharded: bool, culprit: int) -> None:
    for text in run(fail, str(tmp_path / "c"), sharded, culprit, 1, size=2, folder=tmp_path):
        assert f"failed in rank {culprit} of 2: OSError: [Errno 28] No space left on device" in text, text
        assert f"rank {1 - culprit}" not in text
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["step-00000001"]


def misuse(rank: int, folder: str) -> list[str]:
    texts = []
    checkpoints = Checkpoints(folder, timeout=3)
    for use in (
        lambda: checkpoints.save(1, extra={"x": fail} if rank == 0 else None),
        lambda: checkpoints.save(1 + rank),
        lambda: checkpoints.save(1, model=shard(nn.Sequential(nn.Linear(4, 4)))),
        lambda: rank or checkpoints.save(1),
    ):
        try:
            use()
            texts.append("")
        except (CheckpointError, ValueError) as error:
            texts.append(str(error))
    return texts


def test_misuse_is_an_error_in_all_ranks(tmp_path: Path) -> None:
    first, second = run(misuse, str(tmp_path / "c"), size=2, folder=tmp_path)
    for texts in (first, second):
        assert "rank 0 of 2: TypeError: extra['x'] is a function" in texts[0]
        assert "the processes are at different steps: [1, 2]" in texts[1]
        assert "the model is spread over several processes: save with sharded=True" in texts[2]
    assert "all 2 have to call this, rank 0 alone is not enough" in first[3] and not second[3]
    assert list((tmp_path / "c").iterdir()) == []


def die(rank: int, folder: str, sharded: bool, victim: int, call: int) -> tuple[str, float]:
    """One rank is killed at its n-th fsync or rename of the second save, or after it."""
    checkpoints = Checkpoints(folder, sharded=sharded)
    model = DistributedDataParallel(nn.Linear(4, 4))
    checkpoints.save(1, model=model)
    calls = [0]

    def deadly(original: Any) -> Any:
        def wrapper(*args: Any) -> Any:
            calls[0] += 1
            if calls[0] == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args)

        return wrapper

    if rank == victim:
        os.fsync, os.rename = deadly(os.fsync), deadly(os.rename)
    begin = time.monotonic()
    try:
        checkpoints.save(2, model=model)
        checkpoints.save(3, model=model)
    except CheckpointError as error:
        return str(error), time.monotonic() - begin
    return "no error", 0


@pytest.mark.parametrize(
    ("sharded", "victim", "call"),
    [(False, 0, 1), (False, 0, 5), (False, 0, 6), (True, 0, 2), (True, 0, 7), (True, 1, 1), (True, 1, 2)],
)
def test_a_rank_that_dies(tmp_path: Path, sharded: bool, victim: int, call: int) -> None:
    answers = run(die, str(tmp_path / "c"), sharded, victim, call, size=2, folder=tmp_path, survive=True)
    assert answers[victim] is Died
    text, seconds = answers[1 - victim]
    assert "another process has ended" in text or "rank" in text, text
    assert seconds < 20
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*saved by 2 processes")
        restored = Checkpoints(tmp_path / "c").load(model=nn.Linear(4, 4))
    assert restored is not None and restored.step in (1, 2)


def save_in_steps(rank: int, folder: str) -> bool:
    """What the processes tell each other is no part of a step."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        with markstep.step(backend="interpreter", rng="torch"):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            Checkpoints(folder, sharded=step % 2 == 1).save(step, model=model, optimizer=optimizer)
    other = nn.Linear(4, 4)
    Checkpoints(folder).load(model=other)
    return torch.equal(model.weight, other.weight)


def test_inside_of_a_step(tmp_path: Path) -> None:
    assert run(save_in_steps, str(tmp_path / "c"), size=2, folder=tmp_path) == [True, True]


def test_processes_that_are_not_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delitem(sys.modules, "markstep.xla.processes", raising=False)
    with pytest.raises(RuntimeError, match="Call torch.distributed.init_process_group first"):
        Checkpoints(tmp_path).save(1)
