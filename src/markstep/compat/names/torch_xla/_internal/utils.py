"""`torch_xla._internal.utils`: names of devices."""

from markstep.xla.model import parse_device as parse_xla_device

__all__ = ["parse_xla_device"]
