"""`torch_xla.experimental.gru`: the GRU: PyTorch's own."""

from torch.nn import GRU

__all__ = ["GRU"]
