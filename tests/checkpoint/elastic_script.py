"""Trains with two processes under torchrun; one of them is killed once, in the middle of training."""

from __future__ import annotations

import os
import signal
import sys

import torch
import torch.distributed as dist
from tests.checkpoint.training import Training
from torch.nn.parallel import DistributedDataParallel

from markstep.checkpoint import Checkpoints


def main(folder: str, kill_at: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    training = Training(1, ranks=dist.get_world_size(), rank=rank, wrap=DistributedDataParallel)
    checkpoints = Checkpoints(folder)
    restored = checkpoints.load(**training.parts())
    training.step = restored.step if restored else 0
    sys.stdout.write(f"rank {rank} begins at step {training.step}\n")  # in one piece, unlike print: torchrun turns buffers off
    sys.stdout.flush()
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    for loss in training.losses(12):
        if first and rank == 1 and training.step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if training.step % 2 == 0:
            checkpoints.save(training.step, **training.parts())
        if training.step == 12:
            sys.stdout.write(f"rank {rank} ends with {loss.hex()}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
