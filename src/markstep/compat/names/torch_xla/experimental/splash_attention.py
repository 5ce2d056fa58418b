"""`torch_xla.experimental.splash_attention`: kernels for TPUs: not supported."""

from markstep.xla.notices import unsupported

_INSTEAD = "use torch.nn.functional.scaled_dot_product_attention"
splash_attention = unsupported("experimental.splash_attention.splash_attention", _INSTEAD)

__all__ = ["splash_attention"]
