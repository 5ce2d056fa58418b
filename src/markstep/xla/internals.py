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
    return f"Device: {tensor.device}\nData Device: {runtime.real_name()}\nData Shape: {_shape(tensor)}\n"


def _get_xla_tensor_shape_type(tensor: torch.Tensor) -> str:
    """The type of the elements as XLA writes it, such as "f32"."""
    return _DTYPES.get(tensor.dtype, str(tensor.dtype))


def _get_xla_tensor_dimension_size(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """The length of a dimension as a tensor."""
    return torch.tensor(tensor.shape[dim], dtype=torch.int32, device=tensor.device)


def _get_xla_tensors_text(tensors: Sequence[torch.Tensor]) -> str:
    """Tensors in the form of torch_xla's graphs; each is a value of the device, for Markstep keeps no graph of a tensor."""
    lines = [f"  %{i} = {_shape(t)} xla::device_data(), device={runtime.real_name()}, ROOT={i}" for i, t in enumerate(tensors)]
    return "\n".join(["IR {", *lines, "}", ""])


def _get_xla_tensors_hlo(tensors: Sequence[torch.Tensor]) -> str:
    """Tensors in the form of XLA's programs; each is a parameter, for Markstep keeps no graph of a tensor."""
    lines = [f"  %p{i} = {_shape(t)} parameter({i})" for i, t in enumerate(tensors)]
    return "\n".join(["HloModule values", "", "ENTRY %values {", *lines, "}", ""])


def _shape(tensor: torch.Tensor) -> str:
    return f"{_get_xla_tensor_shape_type(tensor)}[{','.join(map(str, tensor.shape))}]"


def _xla_dot_general(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    dim_vectors: Sequence[Sequence[Sequence[int]]],
    precision_config: str | None = None,
    preferred_element_type: torch.dtype | None = None,
) -> torch.Tensor:
    """XLA's product of two tensors over any dimensions: batch dimensions, then the rest of the left, then of the right.

    Args:
        lhs: the left one.
        rhs: the right one.
        dim_vectors: ((left, right) dimensions that are summed over, (left, right) batch dimensions or nothing).
        precision_config: has no effect; see `torch.set_float32_matmul_precision`.
        preferred_element_type: of the result.
    """
    (summed_l, summed_r), *rest = dim_vectors
    batch_l, batch_r = (list(rest[0][0]), list(rest[0][1])) if rest and rest[0] else ([], [])
    dtype = preferred_element_type or torch.promote_types(lhs.dtype, rhs.dtype)
    lhs, rhs = lhs.to(dtype), rhs.to(dtype)
    if not batch_l:
        return torch.tensordot(lhs, rhs, dims=(list(summed_l), list(summed_r)))
    names_l = list(range(lhs.dim()))
    names_r = list(range(lhs.dim(), lhs.dim() + rhs.dim()))
    for left, right in ((summed_l, summed_r), (batch_l, batch_r)):
        for i, j in zip(left, right, strict=True):
            names_r[j] = names_l[i]
    used_l, used_r = {*summed_l, *batch_l}, {*summed_r, *batch_r}
    kept = [n for i, n in enumerate(names_l) if i not in used_l] + [n for i, n in enumerate(names_r) if i not in used_r]
    return torch.einsum(lhs, names_l, rhs, names_r, [*(names_l[i] for i in batch_l), *kept])


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
