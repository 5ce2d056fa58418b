"""Gives memory that the C library keeps back to the system, where a step's pattern of allocations changes.

Eager steps leave the heap in pieces of their sizes, which a compiled step has no use for: without this the process would
hold both.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        function = ctypes.CDLL(None).malloc_trim  # of the GNU C library; elsewhere there is no such thing
    except (AttributeError, OSError, TypeError):
        return None
    function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_int
    return function


def trim() -> None:
    """Takes milliseconds, and the next step touches its memory anew: for rare occasions."""
    function = _malloc_trim()
    if function is not None:
        function(0)
