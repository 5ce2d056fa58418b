"""`torch_xla.experimental.triton`: Triton kernels: not supported."""

from markstep.xla.notices import unsupported

_INSTEAD = "use torch.library.triton_op"
triton_call = unsupported("experimental.triton.triton_call", _INSTEAD)

__all__ = ["triton_call"]
