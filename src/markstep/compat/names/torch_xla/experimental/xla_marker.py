"""`torch_xla.experimental.xla_marker`: marks in graphs: not supported."""

from typing import Any

from markstep.xla.notices import unsupported_class

BoundaryMetadata: Any = unsupported_class("torch_xla.experimental.xla_marker.BoundaryMetadata", "use torch.export")

__all__ = ["BoundaryMetadata"]
