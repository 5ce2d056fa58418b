"""Seeding the device, and what Trainer and Accelerate do when they resume: torch's state first, then xm.set_rng_state."""

import torch

from markstep.xla import rng


def draw() -> list[float]:
    values: list[float] = torch.rand(4, device="xla").tolist()
    return values


def test_a_restored_state_is_left_alone() -> None:
    torch.manual_seed(3)
    draw()
    state, seed = torch.get_rng_state(), rng.get_rng_state()
    following = draw()
    torch.manual_seed(8)
    torch.set_rng_state(state.clone())
    rng.set_rng_state(seed)
    assert draw() == following


def test_seeding_begins_anew() -> None:
    rng.set_rng_state(3)
    first, state = draw(), torch.get_rng_state()
    rng.set_rng_state(3)
    assert draw() == first
    torch.set_rng_state(state)
    following = draw()
    rng.set_rng_state(3)  # something was drawn since
    assert draw() == first
    torch.set_rng_state(state)
    rng.set_rng_state(4)  # another seed
    assert draw() not in (first, following)


def test_a_fork_restores_for_itself() -> None:
    """So does activation checkpointing."""
    rng.set_rng_state(3)
    first = draw()
    with rng.fork_rng():
        draw()
    rng.set_rng_state(3)
    assert draw() == first
