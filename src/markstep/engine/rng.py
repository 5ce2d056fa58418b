"""Reading and setting the generator's state as calls of the program.

`torch.utils.checkpoint` saves the generator's state in forward and restores it around the recomputation. While random calls
are deferred the real state is not what eager execution would show, so reading and setting it are deferred in order too.
"""

from __future__ import annotations

import torch

_library = torch.library.Library("markstep", "DEF")
_library.define("get_rng_state() -> Tensor")
_library.define("set_rng_state(Tensor state) -> ()")


def _get_rng_state() -> torch.Tensor:
    return torch.default_generator.get_state()


def _set_rng_state(state: torch.Tensor) -> None:
    torch.default_generator.set_state(state)


_library.impl("get_rng_state", _get_rng_state, "CompositeExplicitAutograd")
_library.impl("set_rng_state", _set_rng_state, "CompositeExplicitAutograd")
get_rng_state = torch.ops.markstep.get_rng_state.default
set_rng_state = torch.ops.markstep.set_rng_state.default
