"""`torch_xla.experimental.eager`: the switch of eager mode."""

from markstep.xla.eager import eager_mode, eager_mode_context, is_eager_mode
from markstep.xla.steps import compile  # noqa: A004

__all__ = ["compile", "eager_mode", "eager_mode_context", "is_eager_mode"]
