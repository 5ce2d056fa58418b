"""`torch_xla.experimental.unbounded_dynamism_export`: StableHLO: not supported."""

from markstep.xla.notices import unsupported

_INSTEAD = "use torch.export"
exported_program_has_symbolic_input_shape = unsupported(
    "unbounded_dynamism_export.exported_program_has_symbolic_input_shape", _INSTEAD
)
process_exported_program_with_symbolic_input = unsupported(
    "unbounded_dynamism_export.process_exported_program_with_symbolic_input", _INSTEAD
)

__all__ = ["exported_program_has_symbolic_input_shape", "process_exported_program_with_symbolic_input"]
