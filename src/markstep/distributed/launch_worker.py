"""What a worker does before its script runs."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import random
import signal
import sys

import torch

__all__ = ["LAUNCHED", "SEED", "chose_cpu", "is_worker", "prepare", "seed", "tell_accelerate"]

LAUNCHED = "MARKSTEP_LAUNCHED"
"""Variable of workers that `markstep run --nproc` started: the process id of their launcher."""
SEED = "MARKSTEP_SEED"
_PR_SET_PDEATHSIG = 1


def is_worker() -> bool:
    """Whether `markstep run --nproc`, torchrun or another elastic launcher started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def chose_cpu() -> bool:
    """Whether the environment says that computation is for the CPU."""
    return "CPU" in (os.environ.get("MARKSTEP_DEVICE", "").upper(), os.environ.get("PJRT_DEVICE", "").upper())


def prepare() -> None:
    """Makes this process a worker: it ends with its launcher, has its GPU and seed, and shows lines when they are written."""
    os.environ.setdefault("SMDATAPARALLEL_LOCAL_RANK", os.environ["LOCAL_RANK"])
    faulthandler.enable()
    launcher = os.environ.get(LAUNCHED)
    if launcher is None:
        return
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    _end_with(int(launcher))
    local = int(os.environ["LOCAL_RANK"])
    if not chose_cpu() and local < torch.cuda.device_count():
        torch.cuda.set_device(local)
    if chosen := os.environ.get(SEED):
        seed(int(chosen))


def tell_accelerate() -> None:
    """Lets Trainer and Accelerate know that the CPU is meant; on a machine without GPU each worker would train alone."""
    if is_worker() and int(os.environ["WORLD_SIZE"]) > 1 and (chose_cpu() or not torch.accelerator.is_available()):
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")


def seed(value: int) -> None:
    """Seeds Python's, NumPy's and PyTorch's random numbers."""
    import numpy as np

    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


def _end_with(launcher: int) -> None:
    """Asks Linux to end this process when the launcher is killed."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        os.kill(launcher, 0)
    except ProcessLookupError:  # it was killed before that
        os.kill(os.getpid(), signal.SIGTERM)
