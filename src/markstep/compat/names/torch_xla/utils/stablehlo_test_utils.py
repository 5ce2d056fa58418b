"""`torch_xla.utils.stablehlo_test_utils`: StableHLO: not supported."""

from markstep.xla.notices import unsupported

_INSTEAD = "use torch.export"
compare_exported_program_and_saved_model_result = unsupported(
    "stablehlo_test_utils.compare_exported_program_and_saved_model_result", _INSTEAD
)
load_save_model_and_inference = unsupported("stablehlo_test_utils.load_save_model_and_inference", _INSTEAD)
wrap_func_as_nn_module = unsupported("stablehlo_test_utils.wrap_func_as_nn_module", _INSTEAD)


def has_tf_package() -> bool:
    """False: TensorFlow is not used."""
    return False


__all__ = [
    "compare_exported_program_and_saved_model_result",
    "has_tf_package",
    "load_save_model_and_inference",
    "wrap_func_as_nn_module",
]
