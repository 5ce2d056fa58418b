"""One process of a job in which something goes wrong. Usage: faults.py FAULT RANK WORLD PORT."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import markstep
from markstep.distributed import DataParallel

FAULT, RANK, WORLD, PORT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
STEPS, AT = 12, 7


class Data(Dataset):
    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, i: int) -> torch.Tensor:
        if FAULT == "hangs in data loading" and RANK == 1 and i == AT:
            time.sleep(60)  # the line that hangs
        return torch.randn(4, generator=torch.Generator().manual_seed(i))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{PORT}", rank=RANK, world_size=WORLD)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    if FAULT != "does not synchronise":
        model = DataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), torch.arange(4) % 3)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = markstep.compile(train_step, backend="interpreter", rng="torch")
    for i, x in enumerate(DataLoader(Data(), batch_size=1)):
        if RANK == 1 and i == AT:
            if FAULT == "exits early":
                return
            if FAULT == "raises":
                raise ValueError("a batch without labels")  # the line that raises
            if FAULT == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if FAULT == "stops":
                print("stopping", flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)
        loss = step(x.expand(4, 4) + RANK)
    print(f"finished {float(loss):.6f} {[round(float(p.sum()), 6) for p in model.parameters()]}", flush=True)


if __name__ == "__main__":
    main()
