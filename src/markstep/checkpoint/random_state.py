"""The states of the random number generators of a process, in types that `torch.load(weights_only=True)` reads."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from markstep.api import pause, sync


@contextmanager
def settled() -> Iterator[None]:
    """Inside, nothing of a step is pending, and operators run at once."""
    sync()
    with pause():
        yield


def capture(*, devices: bool = True) -> dict[str, Any]:
    """The states of Python's `random`, NumPy's global generator (if NumPy is imported) and torch's generators.

    Args:
        devices: the generators of CUDA devices too, if this process uses CUDA.
    """
    with settled():
        state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
        if (numpy := sys.modules.get("numpy")) is not None:
            found = numpy.random.get_state(legacy=False)
            key = found["state"]["key"].tolist()
            state["numpy"] = {**found, "state": {"key": key, "pos": int(found["state"]["pos"])}}
        if devices and torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = [generator.get_state() for generator in torch.cuda.default_generators]
        return state


def restore(state: dict[str, Any]) -> None:
    """Sets the generators to what `capture` has found. CUDA devices that this machine lacks are passed over."""
    with settled():
        random.setstate(state["python"])
        torch.set_rng_state(state["torch"])
        if "numpy" in state:
            import numpy

            found = state["numpy"]
            key = numpy.array(found["state"]["key"], dtype=numpy.uint32)
            numpy.random.set_state({**found, "state": {**found["state"], "key": key}})
        if "cuda" in state and torch.cuda.is_available():
            for index, one in enumerate(state["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(one, index)


def seed_from(state: dict[str, Any], rank: int) -> None:
    """Seeds all generators with numbers that follow from another process's state and the rank of this one."""
    with settled():
        digest = hashlib.sha256(bytes(state["torch"].tolist()) + str(rank).encode()).digest()
        seed = int.from_bytes(digest[:7], "big")
        random.seed(seed)
        torch.manual_seed(seed)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(seed % 2**32)
