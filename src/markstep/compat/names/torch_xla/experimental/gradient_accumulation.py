"""`torch_xla.experimental.gradient_accumulation`: gradient accumulation."""

from markstep.xla.control_flow import gradient_accumulation

__all__ = ["gradient_accumulation"]
