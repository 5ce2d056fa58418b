"""`torch_xla`, as programs import it; everything comes from `markstep.xla`."""

from markstep.xla import training_compiler

training_compiler.configure()  # before anything reads the environment

from markstep.xla import device as _device  # noqa: E402
from markstep.xla import env as _env  # noqa: E402

_device.install()
_env.warn_of_types()

from torch_xla import _XLAC, amp, backends, core, debug, distributed, experimental, runtime, stablehlo, utils  # noqa: E402
from torch_xla._internal import tpu  # noqa: E402
from torch_xla.core import xla_model as _xm  # noqa: E402, F401
from torch_xla.debug import metrics as _metrics  # noqa: E402, F401
from torch_xla.stablehlo import save_as_stablehlo, save_torch_model_as_stablehlo  # noqa: E402
from torch_xla.torch_xla import (  # noqa: E402
    compile,  # noqa: A004
    device,
    device_count,
    devices,
    launch,
    manual_seed,
    real_devices,
    step,
    sync,
)
from torch_xla.version import __version__  # noqa: E402

_found_libtpu = False

__all__ = [
    "_XLAC",
    "__version__",
    "_found_libtpu",
    "amp",
    "backends",
    "compile",
    "core",
    "debug",
    "device",
    "device_count",
    "devices",
    "distributed",
    "experimental",
    "launch",
    "manual_seed",
    "real_devices",
    "runtime",
    "save_as_stablehlo",
    "save_torch_model_as_stablehlo",
    "stablehlo",
    "step",
    "sync",
    "tpu",
    "utils",
]
