"""`torch_xla.experimental.mark_pattern_utils`: marks in graphs: not supported."""

from typing import Any

from markstep.xla.notices import unsupported_class

StableHLOCompositeBuilder: Any = unsupported_class("StableHLOCompositeBuilder", "use torch.export")

__all__ = ["StableHLOCompositeBuilder"]
