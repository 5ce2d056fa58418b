"""`torch_xla.experimental.scan`: scan."""

from markstep.xla.control_flow import scan

__all__ = ["scan"]
