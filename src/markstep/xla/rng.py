"""The random numbers of the device: those of torch's generators, named by the integer they were last seeded with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from markstep.engine.rng import DefaultGenerator
from markstep.xla import device as xla


def set_rng_state(seed: int, device: Any = None) -> None:
    """Seeds the random numbers of the device. torch.manual_seed does the same, and this seeds the CPU's numbers too.

    One case is left alone: `torch.set_rng_state` has just restored a state of that very seed, and nothing was drawn since.
    The state says more than the seed. So who restores both from a checkpoint, as Trainer and Accelerate do, goes on with the
    numbers that would have come.
    """
    if not _restored(int(seed)):
        torch.manual_seed(int(seed))


def _restored(seed: int) -> bool:
    generator = torch.default_generator
    return isinstance(generator, DefaultGenerator) and torch.initial_seed() == seed and generator.is_at_restored()


def get_rng_state(device: Any = None) -> int:
    """The integer that the random numbers were last seeded with, by `set_rng_state` or `torch.manual_seed`.

    Drawing numbers does not change it: with `set_rng_state` they begin anew. What goes on where it was is
    `torch.get_rng_state` and `torch.set_rng_state`.
    """
    return torch.initial_seed()


@contextmanager
def fork_rng(device: Any = None, enabled: bool = True) -> Iterator[None]:
    """Restores the random state at the end, so that what is drawn inside does not change what is drawn behind."""
    if not enabled:
        yield
        return
    real = xla.real_device()
    with torch.random.fork_rng(devices=[real] if real.type == "cuda" else []):
        yield


def manual_seed(seed: int, device: Any = None) -> None:
    """Seeds the random numbers of the device."""
    set_rng_state(seed, device)
