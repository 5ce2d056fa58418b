"""`torch_xla.experimental.plugins`: device plug-ins: not supported."""

from typing import Any

from markstep.xla.notices import unsupported, unsupported_class

_INSTEAD = "Markstep runs on CPU and CUDA devices"
default = unsupported("experimental.plugins.default", _INSTEAD)
register_plugin = unsupported("experimental.plugins.register_plugin", _INSTEAD)
use_dynamic_plugins = unsupported("experimental.plugins.use_dynamic_plugins", _INSTEAD)
DevicePlugin: Any = unsupported_class("experimental.plugins.DevicePlugin", _INSTEAD)


def using_dynamic_plugins() -> bool:
    """False: there are none."""
    return False


__all__ = ["DevicePlugin", "default", "register_plugin", "use_dynamic_plugins", "using_dynamic_plugins"]
