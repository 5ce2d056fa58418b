"""The switch of torch_xla's eager mode.

Markstep records a step while it runs eagerly and compiles what repeats, so the switch changes no value. It is kept, because
programs ask for it; metrics count operators in eager mode (EagerOpExecuteTime), and `sync` there is no execution of a graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from markstep.xla import env, metrics

_eager: bool | None = None


def eager_mode(enable: bool) -> None:
    """Notes that the program wants eager execution outside of `torch_xla.compile`."""
    global _eager
    _eager = enable
    metrics.set_eager(enable)


def is_eager_mode() -> bool:
    """What `eager_mode` or XLA_USE_EAGER_DEBUG_MODE asked for."""
    return env.flag("XLA_USE_EAGER_DEBUG_MODE") if _eager is None else _eager


@contextmanager
def eager_mode_context(enable: bool) -> Iterator[None]:
    """`eager_mode` for the time of a `with` block."""
    before = is_eager_mode()
    eager_mode(enable)
    try:
        yield
    finally:
        eager_mode(before)
