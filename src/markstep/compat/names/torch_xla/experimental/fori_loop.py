"""`torch_xla.experimental.fori_loop`: loops."""

from markstep.xla.control_flow import fori_loop, while_loop

__all__ = ["fori_loop", "while_loop"]
