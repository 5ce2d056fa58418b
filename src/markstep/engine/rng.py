"""Reading and setting the generator's state as calls of the program.

`torch.utils.checkpoint` saves the generator's state in forward and restores it around the recomputation. While random
calls are deferred the real state is not what eager execution would show, so reading and setting it are deferred too, in
order.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

import torch

from markstep.engine import threads
from markstep.engine.sources import user_line

_KEY: Any = torch._C._parse_dispatch_key("Fake")  # where calls are intercepted
_FORK = inspect.unwrap(torch.random.fork_rng).__code__
_original = torch._C.default_generator
_library = torch.library.Library("markstep", "DEF")
_library.define("get_rng_state() -> Tensor")
_library.define("set_rng_state(Tensor state) -> ()")


def _get_rng_state() -> torch.Tensor:
    return _original.get_state()


def _set_rng_state(state: torch.Tensor) -> None:
    _original.set_state(state)


_library.impl("get_rng_state", _get_rng_state, "CompositeExplicitAutograd")
_library.impl("set_rng_state", _set_rng_state, "CompositeExplicitAutograd")
get_rng_state = torch.ops.markstep.get_rng_state.default
set_rng_state = torch.ops.markstep.set_rng_state.default


class DefaultGenerator(torch.Generator):
    """Takes the place of `torch.default_generator`, through which `torch.manual_seed` and its like work.

    Attributes:
        restored: the state that was last set, unless by `torch.random.fork_rng` (checkpointing too) or before a seed.
    """

    restored: torch.Tensor | None = None

    def get_state(self) -> torch.Tensor:
        """See `torch.Generator.get_state`; inside a step it is a call of the program."""
        if threads.active() is None:
            return super().get_state()
        with _seen():
            return get_rng_state()

    def set_state(self, new_state: torch.Tensor) -> torch.Generator:
        """See `torch.Generator.set_state`; inside a step it is a call of the program."""
        self.restored = None if sys._getframe(2).f_code is _FORK else new_state
        if threads.active() is None:
            super().set_state(new_state)
        else:
            with _seen():
                set_rng_state(new_state)
        return self

    def manual_seed(self, seed: int) -> torch.Generator:
        """See `torch.Generator.manual_seed`; draws that are pending come first."""
        _flush("torch.manual_seed")
        self.restored = None
        super().manual_seed(seed)
        return self

    def seed(self) -> int:
        """See `torch.Generator.seed`; draws that are pending come first."""
        _flush("torch.seed")
        self.restored = None
        return super().seed()

    def initial_seed(self) -> int:
        """See `torch.Generator.initial_seed`; states that are still to be set come first."""
        _flush("torch.initial_seed")
        return super().initial_seed()

    def is_at_restored(self) -> bool:
        """Whether nothing was drawn since `restored` was set; draws that are pending come first."""
        _flush("the generator's state")
        return self.restored is not None and torch.equal(super().get_state(), self.restored)

    def clone_state(self) -> torch.Generator:
        """See `torch.Generator.clone_state`; draws that are pending come first."""
        _flush("torch.Generator.clone_state")
        return super().clone_state()


def _seen() -> torch._C._IncludeDispatchKeyGuard:
    """Inside, calls come to the engine also where it follows only the xla device."""
    return torch._C._IncludeDispatchKeyGuard(_KEY)


def _flush(what: str) -> None:
    engine = threads.active()
    if engine is not None and engine.session.length:
        engine.boundary(what, user_line())


def install(native: ModuleType) -> None:
    """Puts the stand-in where Python code finds the default generator."""
    generator = DefaultGenerator()
    native.stand_in(generator)
    torch.default_generator = torch.random.default_generator = generator
