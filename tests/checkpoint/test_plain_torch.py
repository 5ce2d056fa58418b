"""Checkpoints are readable without Markstep."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.checkpoint.training import Training

from markstep.checkpoint import Checkpoints

WHOLE = """
import sys, torch
folder = sys.argv[1]
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
model.load_state_dict(torch.load(f"{folder}/model.pt", weights_only=True))
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
optimizer.load_state_dict(torch.load(f"{folder}/optimizer.pt", weights_only=True))
scheduler.load_state_dict(torch.load(f"{folder}/scheduler.pt", weights_only=True))
ranks = torch.load(f"{folder}/ranks.pt", weights_only=True)
torch.set_rng_state(ranks[0]["rng"]["torch"])
print(model[0].weight.sum().item().hex(), optimizer.param_groups[0]["lr"].hex(), scheduler.last_epoch, torch.rand(1).item().hex())
assert "markstep" not in sys.modules
"""
SHARDED = """
import sys, torch, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
folder, target = sys.argv[1], sys.argv[2]
dcp_to_torch_save(f"{folder}/shards", target)
state = torch.load(target, weights_only=True)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
model.load_state_dict(state["model"])
other = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
dcp.load({"model": other.state_dict()}, checkpoint_id=f"{folder}/shards", no_dist=True)
assert torch.equal(model[0].weight, other[0].weight)
from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict
optimizer = torch.optim.AdamW(model.parameters())
set_optimizer_state_dict(model, optimizer, state["optimizer"])
moment = optimizer.state[model[0].weight]["exp_avg"].sum().item()
print(model[0].weight.sum().item().hex(), optimizer.param_groups[0]["lr"].hex(), moment.hex())
assert "markstep" not in sys.modules
"""


def output(*args: object) -> list[str]:
    command = [sys.executable, "-W", "ignore", "-c", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout.split()


@pytest.mark.slow
def test_whole(tmp_path: Path) -> None:
    training = Training(1)
    list(training.losses(3))
    path = Checkpoints(tmp_path).save(3, **training.parts())
    wanted = [training.model[0].weight.sum().item().hex(), training.optimizer.param_groups[0]["lr"].hex(), "3"]  # type: ignore[index]
    assert output(WHOLE, path) == [*wanted, torch.rand(1).item().hex()]


@pytest.mark.slow
def test_sharded(tmp_path: Path) -> None:
    training = Training(1)
    list(training.losses(3))
    path = Checkpoints(tmp_path, sharded=True).save(3, **training.parts())
    weight = training.model[0].weight  # type: ignore[index]
    wanted = [
        weight.sum().item(),
        training.optimizer.param_groups[0]["lr"],
        training.optimizer.state[weight]["exp_avg"].sum().item(),
    ]
    assert output(SHARDED, path, tmp_path / "all.pt") == [number.hex() for number in wanted]
