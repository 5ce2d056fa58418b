"""One test method for each of a list of arguments."""

from __future__ import annotations

import functools
import unittest
from collections.abc import Callable
from typing import Any


def parameters(*cases: tuple[Any, ...]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Marks a test method to be called once with each tuple of arguments."""

    def mark(method: Callable[..., None]) -> Callable[..., None]:
        method.cases = cases  # type: ignore[attr-defined]
        return method

    return mark


class TestCase(unittest.TestCase):
    """Replaces marked methods of its subclasses by numbered ones."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, method in list(vars(cls).items()):
            if cases := getattr(method, "cases", ()):
                delattr(cls, name)
                for i, case in enumerate(cases):
                    setattr(cls, f"{name}{i}", functools.partialmethod(method, *case))
