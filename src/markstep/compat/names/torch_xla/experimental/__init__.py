"""`torch_xla.experimental`: experiments."""

from torch_xla.experimental.eager import compile, eager_mode, eager_mode_context, is_eager_mode  # noqa: A004

__all__ = ["compile", "eager_mode", "eager_mode_context", "is_eager_mode"]
