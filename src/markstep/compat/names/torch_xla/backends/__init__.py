"""`torch_xla.backends`: precision of products."""

from markstep.xla.precision import get_mat_mul_precision, set_mat_mul_precision

__all__ = ["get_mat_mul_precision", "set_mat_mul_precision"]
