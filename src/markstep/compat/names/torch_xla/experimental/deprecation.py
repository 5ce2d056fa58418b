"""`torch_xla.experimental.deprecation`: marking functions as deprecated."""

from markstep.xla.legacy import deprecated, mark_deprecated, register_deprecated

__all__ = ["deprecated", "mark_deprecated", "register_deprecated"]
