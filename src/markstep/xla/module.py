"""`torch.xla`, what `torch.get_device_module("xla")` gives: PyTorch's own code (checkpointing, forked generators) asks it.

The device draws from PyTorch's default generator, so that `torch.manual_seed` is all that is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def is_available() -> bool:
    """Always, once it is installed."""
    return True


def device_count() -> int:
    """One device for each process."""
    return 1


def current_device() -> int:
    """The index of the device."""
    return 0


def set_device(device: Any) -> None:
    """There is only one."""


def device(index: Any) -> AbstractContextManager[None]:
    """A context in which a device is the current one; there is only one."""
    return nullcontext()


def synchronize(device: Any = None) -> None:
    """Gives all tensors their values."""
    from markstep.xla.device import flush

    flush("torch.xla.synchronize()")


def get_rng_state(device: Any = "xla") -> Tensor:
    """The state of the generator."""
    return torch.get_rng_state()


def get_rng_state_all() -> list[Tensor]:
    """The state of the generator."""
    return [torch.get_rng_state()]


def set_rng_state(new_state: Tensor, device: Any = "xla") -> None:
    """Sets the state of the generator."""
    torch.set_rng_state(new_state)


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    """Sets the state of the generator."""
    for state in new_states:
        torch.set_rng_state(state)


def manual_seed(seed: int) -> None:
    """Seeds the generator."""
    torch.default_generator.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seeds the generator."""
    torch.default_generator.manual_seed(seed)


def initial_seed() -> int:
    """What the generator was seeded with."""
    return torch.initial_seed()


def is_bf16_supported() -> bool:
    """bf16 works on every real device."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What autocast may lower to."""
    return [torch.bfloat16, torch.float16]


def _is_in_bad_fork() -> bool:
    return False


def is_initialized() -> bool:
    """Nothing has to be initialised."""
    return True
