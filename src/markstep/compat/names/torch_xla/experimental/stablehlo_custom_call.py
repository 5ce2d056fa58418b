"""`torch_xla.experimental.stablehlo_custom_call`: StableHLO: not supported."""

from markstep.xla.notices import unsupported

_INSTEAD = "use torch.library.custom_op"
place_to_device = unsupported("experimental.stablehlo_custom_call.place_to_device", _INSTEAD)
place_to_host = unsupported("experimental.stablehlo_custom_call.place_to_host", _INSTEAD)
stablehlo_custom_call = unsupported("experimental.stablehlo_custom_call.stablehlo_custom_call", _INSTEAD)

__all__ = ["place_to_device", "place_to_host", "stablehlo_custom_call"]
