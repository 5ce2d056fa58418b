"""`torch_xla.utils.closures`: running step closures."""

from markstep.xla.closures import AsyncClosureHandler, ClosureHandler

__all__ = ["AsyncClosureHandler", "ClosureHandler"]
