"""DLPack: tensors of the device for other libraries, without a copy."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.dlpack

from markstep.xla import device


def to_dlpack(xla_tensor: torch.Tensor) -> Any:
    """A DLPack capsule of the memory of an xla tensor, which is that of the real device.

    Raises:
        TypeError: the tensor is not on the xla device.
    """
    return torch.utils.dlpack.to_dlpack(device.to_real(xla_tensor.detach()))


def from_dlpack(ext_tensor: Any) -> torch.Tensor:
    """An xla tensor on the memory of a DLPack capsule, or of an object that can give one.

    Raises:
        TypeError: the memory is not of the real device.
    """
    return device.from_real(torch.utils.dlpack.from_dlpack(ext_tensor))
