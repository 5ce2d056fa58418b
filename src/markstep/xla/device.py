"""The xla device: `torch.device("xla")` for scripts that were written for torch_xla.

Its tensors stand for tensors of the real device, a CPU or a CUDA device (`record/native_code/xla.h`). From one barrier to the
next their operators are a step like any other: recorded, predicted, compiled. What scripts do on the CPU is no part of it.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from markstep.engine import patches, threads
from markstep.engine.engine import Mode
from markstep.engine.options import enabled, resolve
from markstep.engine.region import Place, warn
from markstep.engine.sources import user_line
from markstep.engine.stretch import Stretch, trains_on_xla
from markstep.record import native
from markstep.xla import autocast, module

log = logging.getLogger("markstep")
_PLAIN = (Tensor, nn.Parameter)
_PATIENCE = 8  # optimizer steps without a barrier before a script is told that it has none

_installing = threading.RLock()
_native: Any = None
_place: Place | None = None


class _Local(threading.local):
    stretch: Stretch | None = None
    unbarred = 0  # optimizer steps since the last barrier
    told = False


_local = _Local()


def install() -> None:
    """Makes the device usable in this process; a second call does nothing.

    Raises:
        NativeUnavailable: there is no C++ compiler to build Markstep's C++ part with.
        RuntimeError: the real torch_xla is loaded, or the chosen real device is not there.
    """
    global _native, _place
    with _installing:
        if _native is not None:
            return
        if hasattr(sys.modules.get("_XLAC"), "_xla_get_devices"):
            raise RuntimeError(
                "torch_xla's own library is loaded in this process: it and Markstep's xla device exclude each other"
            )
        options = resolve({})
        real = real_device()
        cache = options.prepared_cache_dir()
        if not native.is_built(cache):
            log.warning("building the xla device, once per machine: this takes about half a minute")
        hot = native.load(cache)
        hot.xla_register(real, _before_reading, (autocast.LOWER_PRECISION, autocast.FP32, autocast.WIDEST))
        with torch.enable_grad():
            torch.zeros((), requires_grad=True).mul(1).backward()
        hot.xla_start_backward()
        patches.install(hot)
        nn.Module.to = _keeping_identity(nn.Module.to)  # type: ignore[method-assign]
        Tensor.to = _timing(Tensor.to)  # type: ignore[method-assign]
        Tensor.data_ptr = _without_data(Tensor.data_ptr)  # type: ignore[method-assign, assignment]
        torch._register_device_module("xla", module)
        register_optimizer_step_post_hook(_after_optimizer)
        _place = Place(options, "the xla device")
        atexit.register(leave)
        _native = hot


def hardware() -> str:
    """What the device computes on: "CPU" or "CUDA", as PJRT_DEVICE or, without it, the machine has it.

    MARKSTEP_XLA_HARDWARE overrides the answer, not where anything is computed: scripts ask for a kind of hardware to decide
    what to do.
    """
    return os.environ.get("MARKSTEP_XLA_HARDWARE", "").upper() or ("CUDA" if real_device().type == "cuda" else "CPU")


@functools.cache
def real_device() -> torch.device:
    """Where the computation happens: the CPU, or the CUDA device of this process (LOCAL_RANK).

    Raises:
        RuntimeError: PJRT_DEVICE asks for a device that is not there.
    """
    wanted = os.environ.get("PJRT_DEVICE", "").upper()
    if wanted not in ("", "CPU", "CUDA", "GPU", "TPU", "NEURON"):
        raise RuntimeError(f"PJRT_DEVICE={wanted}: Markstep's xla device runs on CPU or CUDA; set one of them or nothing")
    if wanted in ("CUDA", "GPU") and not torch.cuda.is_available():
        raise RuntimeError(f"PJRT_DEVICE={wanted}, but PyTorch finds no CUDA device here: unset it, or set PJRT_DEVICE=CPU")
    if wanted == "CPU" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def to_real(tensor: Tensor) -> Tensor:
    """The tensor of the real device that shares memory with an xla tensor; it has its value, and may be written to.

    Raises:
        TypeError: the tensor is not on the xla device.
    """
    install()
    real: Tensor = _native.xla_to_real(tensor)
    engine = threads.active()
    if engine is not None:
        engine.before_sharing(real, "the tensor of the real device")
    return real


def from_real(tensor: Tensor) -> Tensor:
    """An xla tensor on the memory of a tensor of the real device.

    Raises:
        TypeError: the tensor is on another device.
    """
    install()
    made: Tensor = _native.xla_from_real(tensor)
    return made


def barrier(cause: str) -> None:
    """Ends the step of this thread: everything pending runs, all tensors have their values, the next step begins."""
    install()
    _local.unbarred, _local.told = 0, _local.told and cause == _OPTIMIZER
    if not enabled():
        return
    if _local.stretch is not None:
        _local.stretch.next(cause)
    elif threads.active() is None:
        assert _place is not None
        _local.stretch = Stretch(threads.engine(_native), _place.site(_native), everything=False)
        _local.stretch.begin()


def flush(cause: str) -> None:
    """Gives all tensors of this thread their values; the step goes on."""
    engine = threads.active()
    if engine is not None:
        engine.boundary(cause, user_line())


def runs_at_once() -> bool:
    """Whether operators of this thread run one by one when they are called: the step is not predicted."""
    return _local.stretch is None or _local.stretch.plan != "predict"


def op_counts() -> dict[str, int]:
    """Operators and how often each was called on xla tensors."""
    return {} if _native is None else _native.xla_counts()


def clear_op_counts() -> None:
    """Starts counting anew."""
    if _native is not None:
        _native.xla_clear_counts()


def _before_reading(mode: Mode, tensor: Tensor, operator: str) -> None:
    """Called from C++, maybe in a thread of autograd's: a value is on its way to the CPU."""
    from markstep.xla import metrics

    start = time.perf_counter_ns()
    with metrics.Execution(runs_at_once(), counts=not metrics.nothing_to_execute()):
        mode.engine.before_reading(tensor, f"{operator.removeprefix('aten::')} to the CPU")
    if operator == "aten::_to_copy":
        metrics.count_read()
    metrics.observe_transfer("TransferFromDeviceTime", start, tensor.numel() * tensor.element_size())


_OPTIMIZER = "optimizer step (no barrier in the script)"


def _after_optimizer(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Says once that a script has no barrier; from then on the end of an optimizer's step is one."""
    if not trains_on_xla(optimizer):
        return
    _local.unbarred += 1
    if not _local.told and _local.unbarred >= _PATIENCE:
        _local.told = True
        warn(
            f"{_local.unbarred} optimizer steps without torch_xla.sync() (xm.mark_step()), which ends a step: put it behind "
            f"{user_line()}. Until then Markstep takes the end of every optimizer step for it."
        )
    if _local.told:
        barrier(_OPTIMIZER)


def leave() -> None:
    """Finishes what is pending and follows this thread no longer; the next barrier begins anew."""
    stretch, _local.stretch = _local.stretch, None
    _local.unbarred, _local.told = 0, False
    if stretch is not None:
        stretch.stop(failed=False)


def _keeping_identity(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Module.to` that keeps the Parameter objects, and with them ties and optimizers, on the way to and from the device."""

    @functools.wraps(original)
    def to(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        device = torch._C._nn._parse_to(*args, **kwargs)[0]
        moves = device is not None and any((t.device.type == "xla") != (device.type == "xla") for t in self.parameters())
        if not moves or torch.__future__.get_swap_module_params_on_conversion():
            return original(self, *args, **kwargs)
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return original(self, *args, **kwargs)
        except RuntimeError:  # something else holds on to a parameter, a weak reference say: it becomes a new object
            torch.__future__.set_swap_module_params_on_conversion(False)
            return original(self, *args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)

    return to


def _timing(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`Tensor.to` that measures transfers to the device; costs the others half a microsecond."""
    from markstep.xla import metrics

    @functools.wraps(original)
    def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        target: Any = args[0] if args else kwargs.get("device")
        kind = type(target)
        if kind is torch.device:
            if target.type != "xla":
                return original(self, *args, **kwargs)
        elif kind is not str or not target.startswith("xla"):
            return original(self, *args, **kwargs)
        if type(self) not in _PLAIN or self.device.type == "xla":
            return original(self, *args, **kwargs)
        start = time.perf_counter_ns()
        result = original(self, *args, **kwargs)
        metrics.observe_transfer("TransferToDeviceTime", start, self.numel() * self.element_size())
        return result

    return to


def _without_data(original: Callable[[Tensor], int]) -> Callable[[Tensor], int]:
    """`data_ptr` is 0: no address means anything on this device."""

    @functools.wraps(original)
    def data_ptr(self: Tensor) -> int:
        return 0 if self.device.type == "xla" else original(self)

    return data_ptr


def native_module() -> ModuleType:
    """The C++ part, installed."""
    install()
    loaded: ModuleType = _native
    return loaded
