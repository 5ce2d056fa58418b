"""`torch_xla.experimental.pjrt_backend`: the backend of torch.distributed, under the name before torch_xla 2.1."""

from markstep.xla.backend import ProcessGroupXla

__all__ = ["ProcessGroupXla"]
