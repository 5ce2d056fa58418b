"""`torch_xla.utils.buffer_donor_context`: which inputs a program may overwrite."""

from markstep.xla.legacy import alias_with_buffer_donor_config

__all__ = ["alias_with_buffer_donor_config"]
