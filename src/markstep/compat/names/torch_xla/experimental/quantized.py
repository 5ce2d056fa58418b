"""`torch_xla.experimental.quantized`: quantised tensors: not supported."""

from markstep.xla.notices import unsupported

_INSTEAD = "use torchao"
matmul_4bit = unsupported("experimental.quantized.matmul_4bit", _INSTEAD)

__all__ = ["matmul_4bit"]
