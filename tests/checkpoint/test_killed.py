"""A process that saves is killed at any moment: the newest complete checkpoint loads, and nothing in it is of another step."""

from __future__ import annotations

import os
import random
import struct
import time
import warnings
from pathlib import Path

import pytest
import torch
from tests.checkpoint.workers import CONTEXT, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from markstep.checkpoint import CheckpointError, Checkpoints, Restored

ROUNDS = 100


class Trained:
    """A model and an optimizer whose every number is that of a step."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0, momentum=0.5)

    @torch.no_grad()
    def set(self, step: int) -> None:
        for p in self.model.parameters():
            p.fill_(step)
            self.optimizer.state[p]["momentum_buffer"] = torch.full_like(p, step)
        self.optimizer.param_groups[0]["lr"] = float(step)

    def holds(self, restored: Restored) -> bool:
        """Whether everything is of one step."""
        step = restored.step
        tensors = [*self.model.parameters(), *(s["momentum_buffer"] for s in self.optimizer.state.values())]
        numbers = {step, restored.extra, self.optimizer.param_groups[0]["lr"], int(restored.path.name[5:13])}
        return numbers == {step} and len(tensors) == 8 and all(bool((t == step).all()) for t in tensors)


def save_for_ever(rank: int, folder: str, told: str, sharded: bool, ranks: int) -> None:
    """Goes on with the newest checkpoint, and writes down each step that is saved."""
    trained, checkpoints = Trained(), Checkpoints(folder, keep=2, sharded=sharded)
    wrapped = DistributedDataParallel(trained.model) if ranks > 1 else trained.model
    restored = checkpoints.load(model=wrapped, optimizer=trained.optimizer)
    step = 0 if restored is None else restored.step
    descriptor = os.open(told, os.O_WRONLY | os.O_CREAT)
    while True:
        if rank == 0:
            os.pwrite(descriptor, struct.pack("qq", os.getpid(), step), 0)
        step += 1
        trained.set(step)
        checkpoints.save(step, model=wrapped, optimizer=trained.optimizer, extra=step)


def read_told(told: Path, pid: int, limit: float = 60) -> int:
    """The step that a process has written down last; waits for the first."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        content = told.read_bytes() if told.exists() else b""
        if len(content) == 16 and (found := struct.unpack("qq", content))[0] == pid:
            return int(found[1])
        time.sleep(0.002)
    raise AssertionError("the process has saved nothing")


def check_newest(folder: Path, at_least: int) -> bool:
    """The newest checkpoint loads and is of one step; whether something unfinished lies next to it."""
    unfinished = any(folder.glob(".saving-*"))
    trained = Trained()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is passed over
        warnings.filterwarnings("ignore", ".*was saved by 2 processes")
        restored = Checkpoints(folder).load(model=trained.model, optimizer=trained.optimizer)
    assert restored is not None or at_least == 0
    if restored is not None:
        assert trained.holds(restored)
        assert at_least <= restored.step <= at_least + 1, "what was saved is there"
    return unfinished


@pytest.mark.slow
def test_the_only_process_is_killed(tmp_path: Path) -> None:
    chance, in_the_middle, told = random.Random(1), 0, tmp_path / "told"
    for round_ in range(ROUNDS):
        process = CONTEXT.Process(target=save_for_ever, args=(0, str(tmp_path / "c"), str(told), round_ % 2 == 1, 1), daemon=True)
        process.start()
        try:
            assert process.pid is not None
            read_told(told, process.pid)
            time.sleep(chance.random() * 0.1)
        finally:
            process.kill()
            process.join()
        in_the_middle += check_newest(tmp_path / "c", read_told(told, process.pid))
    assert in_the_middle >= ROUNDS // 4, f"only {in_the_middle} of {ROUNDS} were killed in the middle of saving"
    assert len(list((tmp_path / "c").iterdir())) <= 2 + 1 + 2, "what is left over was cleaned up"


def save_until_it_fails(rank: int, *args: object) -> str:
    try:
        save_for_ever(rank, *args)  # type: ignore[arg-type]
    except CheckpointError as error:
        return str(error)
    return "no error"


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_one_of_two_ranks_is_killed(tmp_path: Path, sharded: bool) -> None:
    """The other one gets to know, and goes on with the newest checkpoint in the next round."""
    chance, in_the_middle, told = random.Random(2), 0, tmp_path / "told"
    for round_ in range(20):
        victim = round_ % 2
        ranks = start(save_until_it_fails, str(tmp_path / "c"), str(told), sharded, 2, size=2, folder=tmp_path)
        try:
            pid = ranks.processes[0].pid
            read_told(told, pid)
            time.sleep(chance.random() * 0.1)
            ranks.processes[victim].kill()
            text = ranks.answers(30)[1 - victim]
        finally:
            ranks.end()
        assert "another process has ended" in text or "failed in rank" in text, text
        in_the_middle += check_newest(tmp_path / "c", read_told(told, pid))
    assert victim == 1 and in_the_middle >= 3, f"only {in_the_middle} of 20 were killed in the middle of saving"
