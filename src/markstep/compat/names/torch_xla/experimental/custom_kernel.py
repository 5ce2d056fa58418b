"""`torch_xla.experimental.custom_kernel`: kernels for TPUs: not supported, but for what is plain PyTorch."""

from markstep.xla.functions import repeat_with_fixed_output_size
from markstep.xla.notices import unsupported

_INSTEAD = "use torch.nn.functional.scaled_dot_product_attention and other PyTorch operators"
flash_attention = unsupported("experimental.custom_kernel.flash_attention", _INSTEAD)
gmm = unsupported("experimental.custom_kernel.gmm", _INSTEAD)
jax_import_guard = unsupported("experimental.custom_kernel.jax_import_guard", _INSTEAD)
make_kernel_from_pallas = unsupported("experimental.custom_kernel.make_kernel_from_pallas", _INSTEAD)
multi_queries_paged_attention = unsupported("experimental.custom_kernel.multi_queries_paged_attention", _INSTEAD)
paged_attention = unsupported("experimental.custom_kernel.paged_attention", _INSTEAD)
quantized_matmul_int8 = unsupported("experimental.custom_kernel.quantized_matmul_int8", _INSTEAD)
ragged_paged_attention = unsupported("experimental.custom_kernel.ragged_paged_attention", _INSTEAD)
tgmm = unsupported("experimental.custom_kernel.tgmm", _INSTEAD)
trace_pallas = unsupported("experimental.custom_kernel.trace_pallas", _INSTEAD)

__all__ = [
    "flash_attention",
    "gmm",
    "jax_import_guard",
    "make_kernel_from_pallas",
    "multi_queries_paged_attention",
    "paged_attention",
    "quantized_matmul_int8",
    "ragged_paged_attention",
    "repeat_with_fixed_output_size",
    "tgmm",
    "trace_pallas",
]
