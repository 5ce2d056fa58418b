"""Environment variables of torch_xla."""

from __future__ import annotations

import os
import warnings
from typing import Any

_TRUE = ("1", "true", "yes", "y", "on")
_FALSE = ("0", "false", "no", "n", "off", "")


def flag(name: str, default: str = "") -> bool:
    """Whether a variable is set to 1, true, yes, y or on."""
    return os.environ.get(name, default).lower() in _TRUE


def value_as(name: str, type: Any, defval: Any = None) -> Any:  # noqa: A002
    """The variable converted by `type`, or `defval` when it is not set.

    Raises:
        ValueError: the text does not convert; for `bool`: it is neither a yes nor a no.
    """
    text = os.environ.get(name)
    if text is None:
        return defval
    if type is bool:
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError(f"{name}={text!r} is no truth value: use 0 or 1")
        return text.lower() in _TRUE
    return type(text)


def debug_level() -> int:
    """Level of the debug report: 0 none, 1 compilations, 2 executions too."""
    if os.environ.get("PT_XLA_DEBUG_LEVEL"):
        return int(os.environ["PT_XLA_DEBUG_LEVEL"])
    return 2 if flag("PT_XLA_DEBUG") else 0


def warn_of_types() -> None:
    """Says that the variables that made every float a bf16, deprecated in torch_xla, do nothing."""
    for name in ("XLA_USE_BF16", "XLA_DOWNCAST_BF16"):
        if flag(name):
            warnings.warn(
                f"{name} is ignored, types are what the program says: use torch.autocast('xla', dtype=torch.bfloat16), or "
                "model.to(torch.bfloat16)",
                stacklevel=3,
            )
