"""The user's line that is being executed."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from functools import lru_cache
from types import CodeType, FrameType

import torch

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep


@lru_cache(maxsize=8192)
def _rank(code: CodeType) -> int:
    """0: torch, Markstep and the standard library; 1: other installed packages; 2: the user's own code."""
    name = code.co_filename
    if (
        name.startswith((_PACKAGE, _TORCH))
        or name.startswith("<frozen")
        or (name.startswith(_STDLIB) and "-packages" not in name)
    ):
        return 0
    return 1 if "site-packages" in name or "dist-packages" in name else 2


def user_line() -> str:
    """`file:line` of the innermost frame in the user's own code, with the library line it was called through."""
    found = innermost_line(sys._getframe(1))
    if not found:  # a thread of autograd's: the user's line is where backward was called
        found = innermost_line(sys._current_frames().get(threading.main_thread().ident or 0))
    return found or "unknown line"


def innermost_line(frame: FrameType | None) -> str:
    """As `user_line`, for any frame; empty if there is none."""
    library = ""
    while frame is not None:
        rank = _rank(frame.f_code)
        if rank == 2:
            place = f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"
            return f"{place} (through {library})" if library else place
        if rank == 1 and not library:
            library = f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return library


@lru_cache(maxsize=4096)
def _short(name: str) -> str:
    for mark in ("site-packages" + os.sep, "dist-packages" + os.sep):
        if mark in name:
            return name.split(mark, 1)[1]
    relative = os.path.relpath(name) if os.path.isabs(name) else name
    return name if relative.startswith("..") else relative
