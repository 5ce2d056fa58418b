"""Functions of torch_xla's C++ module that programs are known to call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from markstep.xla import device, metrics, model, precision, rng, runtime, steps
from markstep.xla.structures import upload

_DTYPES = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "s64",
    torch.int32: "s32", torch.int16: "s16", torch.int8: "s8", torch.uint8: "u8", torch.bool: "pred",
    torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    """A number of the memory of a tensor; tensors that share memory have the same."""
    return tensor.untyped_storage()._cdata


def _xla_get_tensor_view_alias_id(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _get_xla_tensor_debug_info(tensor: torch.Tensor) -> str:
    """Where a tensor is and what shape it has, one line each."""
    shape = ",".join(map(str, tensor.shape))
    kind = _DTYPES.get(tensor.dtype, str(tensor.dtype))
    return f"Device: {tensor.device}\nData Device: {runtime.real_name()}\nData Shape: {kind}[{shape}]\n"


def _xla_tensors_from_aten(tensors: list[torch.Tensor], devices: Sequence[str], shardings: Any = None) -> list[torch.Tensor]:
    return upload(tensors)


def _xla_get_cpu_tensors(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [t.cpu() for t in tensors]


def _xla_sync_multi(tensors: Any, devices: Any = (), wait: bool = True, sync_xla_data: bool = True) -> None:
    device.flush("torch_xla._XLAC._xla_sync_multi")


def _xla_step_marker(device: str = "", devices: Any = (), wait: bool = True, reset_scope: bool = True) -> None:
    steps.end_step("user torch_xla.sync")


def _xla_wait_device_ops(devices: Any = ()) -> None:
    model.wait_device_ops()


def _xla_get_devices() -> list[str]:
    return ["xla:0"]


def _xla_get_all_devices() -> list[str]:
    return model.xla_replication_devices()


def _xla_real_devices(devices: Any = None) -> list[str]:
    return runtime.real_devices()


def _xla_num_devices() -> int:
    return 1


def _xla_get_default_device() -> str:
    return "xla:0"


def _xla_get_default_device_ordinal() -> int:
    return 0


def _xla_set_default_device(name: str) -> str:
    runtime.device(torch.device(name).index)
    return "xla:0"


def _xla_set_mat_mul_precision(name: str) -> None:
    precision.set_mat_mul_precision(name)


def _xla_get_mat_mul_precision() -> str:
    return precision.get_mat_mul_precision()


def _xla_set_rng_seed(seed: int, device: str = "") -> None:
    rng.set_rng_state(seed)


def _xla_get_rng_seed(device: str = "") -> int:
    return rng.get_rng_state()


def _xla_memory_info(device: str = "") -> Any:
    return model.get_memory_info()


def _xla_increment_counter(name: str, value: int) -> None:
    metrics.count(name, value)


def _get_executed_fallback_ops() -> list[str]:
    return metrics.executed_fallback_ops()


def _get_git_revs() -> dict[str, str]:
    import markstep

    return {"markstep": markstep.__version__, "torch": str(torch.version.git_version)}


def _init_xla_lazy_backend() -> None:
    device.install()


def _xla_runtime_is_initialized() -> bool:
    return True


def _prepare_to_exit() -> None:
    device.flush("end of the program")
