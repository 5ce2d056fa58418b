"""`torch_xla.experimental.xla_quantized_matmul`: quantised products: not supported."""

from typing import Any

from markstep.xla.notices import unsupported_class

XlaQuantizedLinear: Any = unsupported_class("XlaQuantizedLinear", "use torchao")

__all__ = ["XlaQuantizedLinear"]
