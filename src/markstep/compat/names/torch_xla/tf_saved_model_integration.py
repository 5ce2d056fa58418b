"""`torch_xla.tf_saved_model_integration`: TensorFlow: not supported."""

from markstep.xla.notices import unsupported

_INSTEAD = "use torch.export"
make_tf_function = unsupported("tf_saved_model_integration.make_tf_function", _INSTEAD)
save_stablehlo_graph_as_tf = unsupported("tf_saved_model_integration.save_stablehlo_graph_as_tf", _INSTEAD)
save_torch_module_as_tf_saved_model = unsupported("tf_saved_model_integration.save_torch_module_as_tf_saved_model", _INSTEAD)

__all__ = ["make_tf_function", "save_stablehlo_graph_as_tf", "save_torch_module_as_tf_saved_model"]
