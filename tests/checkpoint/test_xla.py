"""Checkpoints of tensors on the xla device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from markstep.checkpoint import CheckpointError, Checkpoints, ResumableLoader, load_weights
from markstep.engine.options import resolve
from markstep.engine.region import Place
from markstep.xla import device, steps
from markstep.xla.loader import MpDeviceLoader
from markstep.xla.spawn import spawn


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    device.install()
    monkeypatch.setattr(device, "_place", Place(resolve({"backend": "interpreter", "rng": "torch"}), "a test"))
    yield
    device.leave()


class Training:
    def __init__(self, seed: int) -> None:
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(24, 4))
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.Linear(4, 4)).to("xla")
        self.model[2].weight = self.model[0].weight
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.loader = ResumableLoader(MpDeviceLoader(DataLoader(data, batch_size=3, shuffle=True), "xla"))

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "loader": self.loader}

    def losses(self, until: int) -> Iterator[torch.Tensor]:
        while True:
            for (x,) in self.loader:
                loss = self.model(x).square().sum()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                yield loss.detach()
                if self.loader.batches + 8 * self.loader.epoch >= until:
                    return


@pytest.mark.parametrize("sharded", [False, True])
def test_resumes_with_the_same_bits(tmp_path: Path, sharded: bool) -> None:
    training, wanted = Training(1), []
    for loss in training.losses(11):
        wanted.append(loss)
        if len(wanted) == 5:
            path = Checkpoints(tmp_path, sharded=sharded).save(5, **training.parts())
    steps.end_step("a test")
    resumed = Training(2)
    assert Checkpoints(tmp_path).load(**resumed.parts()) is not None
    assert [float(loss) for loss in resumed.losses(11)] == [float(loss) for loss in wanted[5:]]
    assert resumed.model[0].weight.device.type == "xla" and resumed.model[2].weight is resumed.model[0].weight
    on_cpu = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.Linear(4, 4))
    load_weights(on_cpu, path)
    assert on_cpu[0].weight.equal(on_cpu[2].weight)
    if not sharded:
        state = torch.load(path / "optimizer.pt", weights_only=True)["state"]
        assert {t.device.type for s in state.values() for t in s.values()} == {"cpu"}


def save_and_load(rank: int, folder: str) -> None:
    """In processes that only the xla device connects."""
    training = Training(1)
    for loss in training.losses(3):
        assert loss.device.type == "xla"
    torch.manual_seed(rank)
    Checkpoints(folder).save(3, **training.parts(), extra=rank)
    drawn, other = torch.rand(1), Training(2)
    restored = Checkpoints(folder).load(**other.parts())
    assert restored is not None and restored.extra == 0 and torch.equal(torch.rand(1), drawn)
    assert torch.equal(other.model[0].weight.cpu(), training.model[0].weight.cpu())
    with pytest.raises(CheckpointError, match=r"rank 1 of 2: ValueError: .* need torch.distributed.init_process_group"):
        Checkpoints(folder, sharded=True).save(4)


@pytest.mark.slow
def test_processes_of_the_xla_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    spawn(save_and_load, (str(tmp_path),), nprocs=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000003"]
