"""The memory of CPU tensors: kept from step to step, given back where a step's pattern of allocations changes.

PyTorch returns large blocks to the system and gets them back, page by page and filled with zeros, in the next step. The arena
(record/native_code/arena.h) keeps them. When compiled steps take over from eager ones, what those left behind goes back: the
process would hold both otherwise.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from types import ModuleType

_arena: ModuleType | None = None


def keep(native: ModuleType) -> None:
    """From now on large CPU tensors come from the arena, in the whole process; without one where it cannot be reserved."""
    global _arena
    if _arena is None and native.arena(True):
        _arena = native
        trim()  # what eager steps have left in the C library's heap will not be used again


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
    if _arena is not None:
        _arena.arena_trim()
