"""`torch_xla._dynamo`: torch.compile."""

from torch_xla._dynamo import config

__all__ = ["config"]
