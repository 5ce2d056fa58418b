"""`torch_xla.stablehlo`: StableHLO: not supported."""

from typing import Any

from markstep.xla.notices import unsupported, unsupported_class

_INSTEAD = "use torch.export"
exported_program_to_stablehlo = unsupported("stablehlo.exported_program_to_stablehlo", _INSTEAD)
save_as_stablehlo = unsupported("stablehlo.save_as_stablehlo", _INSTEAD)
save_torch_model_as_stablehlo = unsupported("stablehlo.save_torch_model_as_stablehlo", _INSTEAD)
StableHLOExportOptions: Any = unsupported_class("stablehlo.StableHLOExportOptions", _INSTEAD)
StableHLOGraphModule: Any = unsupported_class("stablehlo.StableHLOGraphModule", _INSTEAD)

__all__ = [
    "StableHLOExportOptions",
    "StableHLOGraphModule",
    "exported_program_to_stablehlo",
    "save_as_stablehlo",
    "save_torch_model_as_stablehlo",
]
