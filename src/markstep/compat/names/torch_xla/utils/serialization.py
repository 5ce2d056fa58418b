"""`torch_xla.utils.serialization`: saving one file for each tensor."""

from markstep.xla.serialization import TensorReference, load, save

__all__ = ["TensorReference", "load", "save"]
