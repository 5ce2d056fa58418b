"""The threaded DataParallel of early torch_xla releases, for the one device of a process."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch

from markstep.xla import loader as loaders
from markstep.xla import model as xm


class Context:
    """What a loop function may keep between its calls.

    Attributes:
        device: where it runs.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def getattr_or(self, name: str, defval: Any) -> Any:
        """An attribute, set to `defval` (or its result, if it is a function) at first use."""
        value = getattr(self, name, None)
        if value is None:
            value = defval() if callable(defval) else defval
            setattr(self, name, value)
        return value


class DataParallel:
    """Runs a loop function on a model and a loader, on the device. For several devices start several processes.

    Args:
        network: a module, or what makes one.
        device_ids: the device of this process; an empty list runs on the CPU.
        **kwargs: of the parallel loader.

    Raises:
        ValueError: several devices.
    """

    def __init__(self, network: Any, device_ids: Any = None, **kwargs: Any) -> None:
        ids = [str(d) for d in (xm.get_xla_supported_devices() if device_ids is None else device_ids)]
        if len(ids) > 1:
            raise ValueError(f"device_ids={ids}: a process has one device; use torch_xla.launch for several")
        module = network if isinstance(network, torch.nn.Module) else network()
        self._kwargs = kwargs
        self._device = torch.device(ids[0] if ids else "cpu")
        self._models = [deepcopy(module).to(self._device)]
        self._contexts = [Context(self._device)]

    @property
    def devices(self) -> list[str]:
        """Names of the devices."""
        return [str(self._device)]

    @property
    def models(self) -> list[torch.nn.Module]:
        """The models, one for each device."""
        return self._models

    def __call__(self, loop_fn: Callable[..., Any], loader: Any, batchdim: int = 0, **kwargs: Any) -> list[Any]:
        """The results of loop_fn(model, batches, device, context), one for each device."""
        batches = loader
        if self._device.type == "xla":
            batches = loaders.ParallelLoader(loader, [self._device], batchdim, **{**self._kwargs, **kwargs})
            batches = batches.per_device_loader(self._device)
        return [loop_fn(self._models[0], batches, self._device, self._contexts[0])]
