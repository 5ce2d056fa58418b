"""`torch_xla.utils.gcsfs`: Google Cloud Storage: not supported."""

from markstep.xla.notices import unsupported

_INSTEAD = "use the package gcsfs or fsspec"
open = unsupported("utils.gcsfs.open", _INSTEAD)
list = unsupported("utils.gcsfs.list", _INSTEAD)
read = unsupported("utils.gcsfs.read", _INSTEAD)
write = unsupported("utils.gcsfs.write", _INSTEAD)
remove = unsupported("utils.gcsfs.remove", _INSTEAD)
rmtree = unsupported("utils.gcsfs.rmtree", _INSTEAD)
stat = unsupported("utils.gcsfs.stat", _INSTEAD)

__all__ = ["list", "open", "read", "remove", "rmtree", "stat", "write"]
