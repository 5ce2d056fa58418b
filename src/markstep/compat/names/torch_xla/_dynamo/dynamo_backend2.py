"""`torch_xla._dynamo.dynamo_backend2`: torch.compile: not supported."""

from markstep.xla.notices import unsupported

_INSTEAD = "use torch_xla.compile or markstep.compile"
dynamo_backend = unsupported("_dynamo.dynamo_backend2.dynamo_backend", _INSTEAD)

__all__ = ["dynamo_backend"]
