"""What to say about functions that are gone, or that cannot exist here."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def unsupported(name: str, instead: str) -> Callable[..., NoReturn]:
    """A function that raises NotImplementedError at the call: `name` needs XLA itself, `instead` says what to do."""

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{name} needs XLA itself, which Markstep does not contain: {instead}")

    missing.__name__ = missing.__qualname__ = name.rpartition(".")[2]
    missing.__doc__ = f"Not supported: {instead}."
    return missing


def unsupported_class(name: str, instead: str) -> type[Any]:
    """A class whose instances cannot be made; `isinstance` and subclassing work."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"{name} needs XLA itself, which Markstep does not contain: {instead}")

    return type(name.rpartition(".")[2], (), {"__init__": init, "__doc__": f"Not supported: {instead}."})


def warn_deprecated(name: str, release: str, instead: str, *, level: int = 3) -> None:
    """Warns that `name` is deprecated in torch_xla since `release`; `level` counts frames as `warnings.warn` does."""
    warnings.warn(f"{name} is deprecated since torch_xla {release}: use {instead}", DeprecationWarning, stacklevel=level)


def warn_removed(name: str, release: str, instead: str) -> None:
    """Warns that torch_xla has no `name` since `release`."""
    warnings.warn(f"{name} is gone since torch_xla {release}: use {instead}", DeprecationWarning, stacklevel=3)


def deprecated(name: str, release: str, instead: str) -> Callable[[F], F]:
    """Decorator: the function works and warns at each call."""

    def decorate(fn: F) -> F:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            warn_deprecated(name, release, instead)
            return fn(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorate
