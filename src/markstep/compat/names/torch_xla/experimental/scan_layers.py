"""`torch_xla.experimental.scan_layers`: layers that are alike."""

from markstep.xla.control_flow import scan_layers

__all__ = ["scan_layers"]
