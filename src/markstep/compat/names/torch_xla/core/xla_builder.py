"""`torch_xla.core.xla_builder`: building XLA graphs by hand: not supported."""

from typing import Any

from markstep.xla.notices import unsupported, unsupported_class

_INSTEAD = "write it with PyTorch operators, which Markstep compiles"
create_builder = unsupported("xla_builder.create_builder", _INSTEAD)
mkshape = unsupported("xla_builder.mkshape", _INSTEAD)
mkop = unsupported("xla_builder.mkop", _INSTEAD)
mkleaf = unsupported("xla_builder.mkleaf", _INSTEAD)
mkparam = unsupported("xla_builder.mkparam", _INSTEAD)
tensor_shape = unsupported("xla_builder.tensor_shape", _INSTEAD)
create_computation = unsupported("xla_builder.create_computation", _INSTEAD)
computation_from_module_proto = unsupported("xla_builder.computation_from_module_proto", _INSTEAD)
get_computation_hlo = unsupported("xla_builder.get_computation_hlo", _INSTEAD)
xla_computation_as_func = unsupported("xla_builder.xla_computation_as_func", _INSTEAD)
call_jax = unsupported("xla_builder.call_jax", _INSTEAD)
create_placeholder_tensor = unsupported("xla_builder.create_placeholder_tensor", _INSTEAD)
jax_func_to_xla_computation = unsupported("xla_builder.jax_func_to_xla_computation", _INSTEAD)
Op: Any = unsupported_class("xla_builder.Op", _INSTEAD)
Shape: Any = unsupported_class("xla_builder.Shape", _INSTEAD)
Type: Any = unsupported_class("xla_builder.Type", _INSTEAD)

__all__ = [
    "Op",
    "Shape",
    "Type",
    "call_jax",
    "computation_from_module_proto",
    "create_builder",
    "create_computation",
    "create_placeholder_tensor",
    "get_computation_hlo",
    "jax_func_to_xla_computation",
    "mkleaf",
    "mkop",
    "mkparam",
    "mkshape",
    "tensor_shape",
    "xla_computation_as_func",
]
