"""`torch_xla.core.xla_op_registry`: operators made of XLA graphs: not supported."""

from typing import Any

from markstep.xla.notices import unsupported, unsupported_class

_INSTEAD = "use torch.library.custom_op"
register = unsupported("xla_op_registry.register", _INSTEAD)
Op: Any = unsupported_class("xla_op_registry.Op", _INSTEAD)

__all__ = ["Op", "register"]
