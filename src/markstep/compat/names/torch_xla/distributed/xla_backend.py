"""`torch_xla.distributed.xla_backend`: the backend xla of torch.distributed."""

from markstep.xla.backend import ProcessGroupXla

__all__ = ["ProcessGroupXla"]
