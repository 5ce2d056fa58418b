"""Mixed precision: autocast, and a gradient scaler that needs no value on the host."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch

from markstep.xla import device as xla
from markstep.xla import steps


class autocast(torch.amp.autocast_mode.autocast):  # noqa: N801
    """`torch.autocast` for the xla device.

    Args:
        device: the xla device, or a name of it; may be left out, as before torch_xla 2.0.
        enabled: False changes nothing.
        dtype: by default bf16; fp16 where the hardware is called "CUDA", as in torch_xla up to 2.8. Where it is called "TPU" or
            "NEURON", fp16 gives a warning and changes nothing: they compute in bf16.
        cache_enabled: keep casts of parameters.
    """

    def __init__(
        self,
        device: Any = None,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool | None = True,
    ) -> None:
        if isinstance(device, bool):
            device, enabled = None, device
        if device is not None and torch.device(device).type != "xla":
            raise ValueError(f"device={device}: torch_xla.amp.autocast is for the xla device; use torch.autocast for others")
        chosen = dtype or (torch.float16 if xla.hardware() in ("CUDA", "GPU") else torch.bfloat16)
        if enabled and chosen == torch.float16 and xla.hardware() in ("TPU", "NEURON"):
            warnings.warn(
                f"autocast to float16 is left off: {xla.hardware()} has no float16; use dtype=torch.bfloat16", stacklevel=2
            )
            enabled = False
        super().__init__("xla", dtype=chosen, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """Scales the loss so that fp16 gradients do not vanish; skips steps whose gradients overflow.

    If `optimizer.step` takes `found_inf` (the optimizers of `torch_xla.amp.syncfree` do), skipping happens on the device.
    Otherwise the step of the device ends here, because the host has to know.

    Args:
        init_scale: see `torch.amp.GradScaler`, like the next four.
        growth_factor: see there.
        backoff_factor: see there.
        growth_interval: in steps.
        enabled: False changes nothing.
        use_zero_grad: instead of skipping, make the step with gradients that are zero.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        use_zero_grad: bool = False,
    ) -> None:
        super().__init__("xla", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        self._use_zero_grad = use_zero_grad

    def _maybe_opt_step(
        self, optimizer: torch.optim.Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        found = list(optimizer_state["found_inf_per_device"].values())
        found_inf = found[0] if len(found) == 1 else torch.stack([f.to(found[0].device) for f in found]).sum()
        if "found_inf" in inspect.signature(optimizer.step).parameters:
            kwargs["found_inf"] = found_inf
            return optimizer.step(*args, **kwargs)
        if self._use_zero_grad:
            overflow = found_inf.reshape(()) != 0
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.masked_fill_(overflow, 0.0)
            return optimizer.step(*args, **kwargs)
        steps.end_step("torch_xla.amp.GradScaler has to know whether gradients overflowed")
        return optimizer.step(*args, **kwargs) if not found_inf.item() else None
