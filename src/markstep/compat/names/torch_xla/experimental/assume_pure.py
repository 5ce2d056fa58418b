"""`torch_xla.experimental.assume_pure`: functions that are traced once."""

from typing import Any

from markstep.xla.legacy import assume_pure
from markstep.xla.notices import unsupported_class

PureModule: Any = unsupported_class("torch_xla.experimental.assume_pure.PureModule", "use the module itself")

__all__ = ["PureModule", "assume_pure"]
