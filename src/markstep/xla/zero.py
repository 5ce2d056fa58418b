"""ZeRO stage 1: each process keeps the optimizer's state of its part of every parameter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from markstep.xla import collectives, processes


class ZeroRedundancyOptimizer(torch.optim.Optimizer):
    """Distributes an optimizer over processes.

    A step sums gradients over processes (each gets its part), clips them, makes the optimizer's step on the parts, and
    gathers the parameters. Parts are cut along dimension 0, which is padded with zeros to a multiple of the processes.

    Args:
        params: parameters or groups of them.
        optimizer_class: for example torch.optim.AdamW.
        optimizer_dtype: type of the parts; by default that of the parameters.
        grad_clipping: clip by the norm over all processes.
        max_norm: largest norm; 1.0 by default.
        pin_layout: has no effect.
        sharding_groups: lists of ordinals among which parameters are distributed; by default all.
        grad_norm_groups: lists of ordinals over which the norm is also summed.
        lazy_init: make parts at `init_zero`.
        bucket_cap_mb_all_gather: has no effect.
        bucket_cap_mb_reduce_scatter: has no effect.
        use_grad_acc_hook: not supported.
        save_master_weights: not supported.
        higher_cc_precision: reduce and gather in the type of the parts.
        **defaults: of the optimizer.

    Raises:
        NotImplementedError: for options that are not supported.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[torch.optim.Optimizer],
        optimizer_dtype: torch.dtype | None = None,
        grad_clipping: bool = True,
        max_norm: float | None = None,
        pin_layout: bool = True,
        sharding_groups: Any = None,
        grad_norm_groups: Any = None,
        lazy_init: bool = False,
        bucket_cap_mb_all_gather: int = 0,
        bucket_cap_mb_reduce_scatter: int = 0,
        use_grad_acc_hook: bool = False,
        save_master_weights: bool = False,
        higher_cc_precision: bool = False,
        **defaults: Any,
    ) -> None:
        if use_grad_acc_hook or save_master_weights:
            raise NotImplementedError("use_grad_acc_hook and save_master_weights are not supported: leave them out")
        super().__init__(params, defaults)
        self.optimizer_class, self.optimizer_dtype = optimizer_class, optimizer_dtype
        self.grad_clipping, self.max_norm = grad_clipping, 1.0 if max_norm is None else max_norm
        self.sharding_groups, self.grad_norm_groups = sharding_groups, grad_norm_groups
        self.higher_cc_precision = higher_cc_precision
        self._defaults = defaults
        self._norm: Tensor | None = None
        self.inited = False
        if not lazy_init:
            self.init_zero()

    @property
    def grad_norm(self) -> Tensor | None:
        """The norm of the last step's gradients over all processes, before clipping."""
        return self._norm

    def init_zero(self) -> None:
        """Makes the parts and the optimizer on them."""
        self._ranks = processes.members(self.sharding_groups)
        self._index = self._ranks.index(processes.ordinal())
        self._parts: list[tuple[Tensor, Tensor]] = []
        groups = []
        for group in self.param_groups:
            parts = []
            for p in group["params"]:
                part = torch.nn.Parameter(self._part(p.detach()).to(self.optimizer_dtype or p.dtype).clone(), p.requires_grad)
                self._parts.append((p, part))
                parts.append(part)
            groups.append({**group, "params": parts})
        self.base_optimizer = self.optimizer_class(groups, **self._defaults)
        self._take_over_options()
        self.inited = True

    def _take_over_options(self) -> None:
        for mine, base in zip(self.param_groups, self.base_optimizer.param_groups, strict=True):
            for name, value in base.items():
                if name != "params":
                    mine.setdefault(name, value)

    def _padded(self, t: Tensor) -> Tensor:
        t = t.reshape(1) if t.dim() == 0 else t
        missing = -t.shape[0] % len(self._ranks)
        return torch.cat([t, t.new_zeros(missing, *t.shape[1:])]) if missing else t

    def _part(self, t: Tensor) -> Tensor:
        return self._padded(t).chunk(len(self._ranks))[self._index]

    @torch.no_grad()
    def step(self, closure: Any = None, **kwargs: Any) -> Any:
        """Makes a step; keyword arguments go to the optimizer's."""
        if not self.inited:
            raise RuntimeError("call init_zero before the first step: the optimizer was made with lazy_init=True")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for mine, base in zip(self.param_groups, self.base_optimizer.param_groups, strict=True):
            base.update({name: value for name, value in mine.items() if name != "params"})
        self._reduce_gradients()
        if self.grad_clipping:
            self._clip()
        self.base_optimizer.step(**kwargs)
        for p, part in self._parts:
            part.grad = None
            sent = part.detach() if self.higher_cc_precision else part.detach().to(p.dtype)
            whole = collectives.all_gather(sent, dim=0, groups=self.sharding_groups)
            p.copy_(whole[: p.shape[0]] if p.dim() else whole[0])
        return loss

    def _reduce_gradients(self) -> None:
        world = len(self._ranks)
        for p, part in self._parts:
            if p.grad is None:
                continue
            grad = p.grad.to(part.dtype) if self.higher_cc_precision else p.grad
            own = collectives.reduce_scatter("sum", self._padded(grad), 1.0 / world, 0, world, self.sharding_groups)
            part.grad = own.to(part.dtype)

    def _clip(self) -> None:
        grads = [part.grad for _, part in self._parts if part.grad is not None]
        if not grads:
            return
        total = torch.stack([g.float().square().sum() for g in grads]).sum()
        total = collectives.all_reduce("sum", total, groups=self.sharding_groups)
        if self.grad_norm_groups is not None:
            total = collectives.all_reduce("sum", total, groups=self.grad_norm_groups)
        self._norm = total.sqrt()
        factor = (self.max_norm / (self._norm + 1e-6)).clamp(max=1.0)
        for g in grads:
            g.mul_(factor.to(g.dtype))

    def state_dict(self) -> dict[str, Any]:
        """State of this process's parts: "base_state" is the optimizer's, "shape_info" the parameters' shapes."""
        return {
            **super().state_dict(),
            "base_state": self.base_optimizer.state_dict()["state"],
            "shape_info": self.get_shape_info(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what `state_dict` gave in the process of the same ordinal."""
        state = dict(state_dict)
        base = {"state": state.pop("base_state"), "param_groups": self.base_optimizer.state_dict()["param_groups"]}
        state.pop("shape_info", None)
        super().load_state_dict(state)
        self.base_optimizer.load_state_dict(base)

    def get_shape_info(self) -> dict[int, torch.Size]:
        """Shapes of the whole parameters, by their numbers."""
        return {i: p.shape for i, (p, _) in enumerate(self._parts)}
