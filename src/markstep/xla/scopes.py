"""Which `Trace` blocks a thread is in: a step may not end inside one."""

from __future__ import annotations

import threading


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.names: list[str] = []
        self.used: dict[str, int] = {}


_scopes = _Scopes()


def enter(name: str) -> None:
    """A block begins; blocks of one name are numbered within a step, from 1."""
    parent = "/".join(_scopes.names)
    key = f"{parent}/{name}"
    _scopes.used[key] = number = _scopes.used.get(key, 0) + 1
    _scopes.names.append(f"{name}.{number}")


def leave() -> None:
    """The innermost block ends."""
    _scopes.names.pop()


def require_none() -> None:
    """Called when the step is to end.

    Raises:
        RuntimeError: this thread is inside a block.
    """
    if _scopes.names:
        raise RuntimeError(
            f"Expecting scope to be empty but it is {'/'.join(_scopes.names)}: end the step outside of the Trace block"
        )
    _scopes.used.clear()
