"""Optimizers whose step is skipped on the device, by `found_inf`, without telling the host.

With `found_inf` every result is where(found_inf, old value, new value), and `state["step"]` counts on the device, the steps
that were not skipped.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


def _loss_of(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _with_gradients(optimizer: torch.optim.Optimizer) -> Iterator[tuple[dict[str, Any], Tensor]]:
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                yield group, p


def _step_on_device(state: dict[str, Any], p: Tensor) -> None:
    step = state.get("step", 0.0)
    if not isinstance(step, Tensor):
        state["step"] = torch.full((), float(step), dtype=torch.float32, device=p.device)
    elif step.device != p.device:
        state["step"] = step.to(p.device, torch.float32)


def _adam_step(optimizer: torch.optim.Optimizer, raw_step: Callable[..., Any], found_inf: Tensor) -> None:
    """Makes the step of an Adam and takes back what it did where `found_inf` is not zero."""
    skipped = found_inf.reshape(()) != 0
    before: list[tuple[Tensor, Tensor]] = []
    for group, p in _with_gradients(optimizer):
        group.update(foreach=False, fused=False, capturable=p.device.type != "cpu")
        state = optimizer.state[p]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
            names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")
            for name in names:
                state[name] = torch.zeros_like(p, memory_format=torch.preserve_format)
        _step_on_device(state, p)
        before += [(t, t.clone()) for t in (p, *state.values()) if isinstance(t, Tensor)]
    raw_step(optimizer)
    for tensor, old in before:
        tensor.copy_(torch.where(skipped, old, tensor))


def _step_of_adam(optimizer: torch.optim.Optimizer, raw_step: Callable[..., Any], closure: Any, found_inf: Tensor | None) -> Any:
    loss = _loss_of(closure)
    if found_inf is None:
        raw_step(optimizer)
    else:
        _adam_step(optimizer, raw_step, found_inf)
    return loss


class Adam(torch.optim.Adam):
    """`torch.optim.Adam` with a step that can be skipped on the device."""

    @torch.no_grad()
    def step(self, closure: Any = None, found_inf: Tensor | None = None) -> Any:
        """Makes a step, unless `found_inf`, a tensor of one element, is not zero; None makes it always."""
        return _step_of_adam(self, inspect.unwrap(torch.optim.Adam.step), closure, found_inf)


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` with a step that can be skipped on the device."""

    @torch.no_grad()
    def step(self, closure: Any = None, found_inf: Tensor | None = None) -> Any:
        """Makes a step, unless `found_inf`, a tensor of one element, is not zero; None makes it always."""
        return _step_of_adam(self, inspect.unwrap(torch.optim.AdamW.step), closure, found_inf)


class SGD(torch.optim.SGD):
    """`torch.optim.SGD` with a step that can be skipped on the device."""

    @torch.no_grad()
    def step(self, closure: Any = None, found_inf: Tensor | None = None) -> Any:
        """Makes a step, unless `found_inf`, a tensor of one element, is not zero; None makes it always."""
        loss = _loss_of(closure)
        if found_inf is None:
            inspect.unwrap(torch.optim.SGD.step)(self)
            return loss
        skipped = found_inf.reshape(()) != 0
        for group, p in _with_gradients(self):
            self._update(group, p, skipped)
        return loss

    def _update(self, group: dict[str, Any], p: Tensor, skipped: Tensor) -> None:
        state = self.state[p]
        known = state.get("momentum_buffer") is not None
        if "step" not in state:
            state["step"] = float(known)
        _step_on_device(state, p)
        assert p.grad is not None
        d = -p.grad if group["maximize"] else p.grad
        if group["weight_decay"]:
            d = d.add(p, alpha=group["weight_decay"])
        if group["momentum"]:
            if not known:
                state["momentum_buffer"] = torch.zeros_like(p)
            buffer = state["momentum_buffer"]
            later = buffer * group["momentum"] + d * (1 - group["dampening"])
            new = torch.where(state["step"] == 0, d, later)
            d = d.add(new, alpha=group["momentum"]) if group["nesterov"] else new
            buffer.copy_(torch.where(skipped, buffer, new))
        p.copy_(torch.where(skipped, p, p.add(d, alpha=-group["lr"])))
        state["step"].copy_(torch.where(skipped, state["step"], state["step"] + 1))
