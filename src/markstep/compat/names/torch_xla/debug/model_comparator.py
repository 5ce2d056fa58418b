"""`torch_xla.debug.model_comparator`: comparing the tensors of two runs."""

from markstep.xla.comparator import compare, compare_tensors, configure, save, tensor_file_compare

__all__ = ["compare", "compare_tensors", "configure", "save", "tensor_file_compare"]
