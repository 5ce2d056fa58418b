"""Every kind of optimizer, schedule and clipping gives eager's weights and state."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from tests.helpers import compare
from torch import nn
from torch.nn import functional as F


def small() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(5, 6), torch.randn(5, 3)


class HandWritten(torch.optim.Optimizer):
    """Adam with its corrections in Python numbers, a tensor's value in a decision, and state kept in Python."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr, "count": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["count"] += 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
                state["mean"].mul_(0.9).add_(p.grad, alpha=0.1)
                state["square"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
                correction = math.sqrt(1 - 0.99 ** group["count"]) / (1 - 0.9 ** group["count"])
                if float(state["mean"].norm()) > 1e-9:
                    p.addcdiv_(state["mean"], state["square"].sqrt() + 1e-8, value=-group["lr"] * correction)


class Plain(torch.optim.Optimizer):
    """Gradient descent through `p.data`, with a Python number that changes every step."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.calls = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.calls += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.data -= group["lr"] / math.sqrt(self.calls) * p.grad.data
                p.data = p.data.clamp(-5, 5)


O = torch.optim  # noqa: E741
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: O.SGD(p, lr=0.1),
    "sgd-momentum": lambda p: O.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-2),
    "sgd-nesterov-foreach": lambda p: O.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "sgd-fused": lambda p: O.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam-single": lambda p: O.Adam(p, lr=1e-2, foreach=False),
    "adam-foreach": lambda p: O.Adam(p, lr=1e-2, foreach=True),
    "adam-fused": lambda p: O.Adam(p, lr=1e-2, fused=True),
    "adam-amsgrad": lambda p: O.Adam(p, lr=1e-2, amsgrad=True, foreach=True, weight_decay=1e-2),
    "adam-tensor-lr": lambda p: O.Adam(p, lr=torch.tensor(1e-2), foreach=False),
    "adam-maximize": lambda p: O.Adam(p, lr=1e-3, maximize=True),
    "adamw-single": lambda p: O.AdamW(p, lr=1e-2, foreach=False),
    "adamw-foreach": lambda p: O.AdamW(p, lr=1e-2, foreach=True),
    "adamw-fused": lambda p: O.AdamW(p, lr=1e-2, fused=True),
    "adamw-fused-tensor-lr": lambda p: O.AdamW(p, lr=torch.tensor(1e-2), fused=True),
    "adamw-amsgrad": lambda p: O.AdamW(p, lr=1e-2, amsgrad=True, foreach=False),
    "rmsprop": lambda p: O.RMSprop(p, lr=1e-3, centered=True, momentum=0.5),
    "rmsprop-foreach": lambda p: O.RMSprop(p, lr=1e-3, foreach=True),
    "adagrad": lambda p: O.Adagrad(p, lr=1e-2),
    "adadelta": lambda p: O.Adadelta(p),
    "adamax": lambda p: O.Adamax(p),
    "nadam": lambda p: O.NAdam(p),
    "radam": lambda p: O.RAdam(p),
    "rprop": lambda p: O.Rprop(p),
    "asgd": lambda p: O.ASGD(p),
    "adafactor": lambda p: O.Adafactor(p),
    "hand-written": lambda p: HandWritten(p, lr=1e-2),
    "through-data": lambda p: Plain(p, lr=1e-2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name: str) -> None:
    def make() -> Any:
        model, x, y = small()
        optimizer = OPTIMIZERS[name](model.parameters())

        def step(i: int) -> Any:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return step, [model, optimizer]

    # RAdam takes another formula from its sixth step on.
    compare(make, recorded=8 if name == "radam" else 4)


def test_transformers_adafactor() -> None:
    from transformers.optimization import Adafactor

    def make() -> Any:
        model, x, y = small()
        optimizer = Adafactor(model.parameters(), lr=None, relative_step=True, warmup_init=True)

        def step(i: int) -> Any:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return step, [model, optimizer]

    compare(make)


def test_lbfgs_with_a_closure() -> None:
    """Its Python decides on values in the middle of the step, differently every time."""

    def make() -> Any:
        model, x, y = small()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=2, history_size=2)

        def step(i: int) -> Any:
            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                return loss

            return optimizer.step(closure)

        return step, [model, optimizer]

    compare(make, recorded=12, share=0.5)


S = torch.optim.lr_scheduler
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda o: S.LambdaLR(o, lambda i: 0.9**i),
    "cosine": lambda o: S.CosineAnnealingLR(o, T_max=10),
    "one-cycle": lambda o: S.OneCycleLR(o, max_lr=0.1, total_steps=25),
    "step": lambda o: S.StepLR(o, step_size=5, gamma=0.5),
    "warm-restarts": lambda o: S.CosineAnnealingWarmRestarts(o, T_0=4),
}


@pytest.mark.parametrize("tensor_lr", [False, True], ids=["float", "tensor"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name: str, tensor_lr: bool) -> None:
    def make() -> Any:
        model, x, y = small()
        lr = torch.tensor(0.05) if tensor_lr else 0.05
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, foreach=not tensor_lr)
        schedule = SCHEDULES[name](optimizer)

        def step(i: int) -> Any:
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            return loss

        return step, [model, optimizer]

    compare(make, recorded=6)


def test_reduce_on_plateau_reads_the_loss() -> None:
    def make() -> Any:
        model, x, y = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, threshold=0.1)

        def step(i: int) -> Any:
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step(loss.detach())
            return loss

        return step, [model, optimizer, schedule]

    compare(make, recorded=6)


CLIPPINGS: dict[str, Callable[[Any], Any]] = {
    "norm": lambda p: nn.utils.clip_grad_norm_(p, 0.5),
    "norm-single": lambda p: nn.utils.clip_grad_norm_(p, 0.5, foreach=False),
    "norm-foreach": lambda p: nn.utils.clip_grad_norm_(p, 0.5, foreach=True),
    "max-norm": lambda p: nn.utils.clip_grad_norm_(p, 0.5, norm_type=math.inf),
    "error-if-nonfinite": lambda p: nn.utils.clip_grad_norm_(p, 0.5, error_if_nonfinite=True),
    "value": lambda p: nn.utils.clip_grad_value_(p, 0.01),
    "value-foreach": lambda p: nn.utils.clip_grad_value_(p, 0.01, foreach=True),
}


@pytest.mark.parametrize("name", CLIPPINGS)
def test_clipping(name: str) -> None:
    def make() -> Any:
        model, x, y = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(i: int) -> Any:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            norm = CLIPPINGS[name](list(model.parameters()))
            optimizer.step()
            return loss, norm

        return step, [model, optimizer]

    compare(make)


def test_parameter_group_added_later() -> None:
    def make() -> Any:
        model, x, y = small()
        optimizer = torch.optim.AdamW(model[2].parameters(), lr=1e-2)

        def step(i: int) -> Any:
            if i == 8:
                optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 1e-3})
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return step, [model, optimizer]

    compare(make, recorded=9)


def test_frozen_tied_and_sometimes_unused_parameters() -> None:
    def make() -> Any:
        embedding, body, head = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11, bias=False)
        extra = nn.Linear(8, 8)
        head.weight = embedding.weight
        body.weight.requires_grad_(False)
        model = nn.ModuleDict({"embedding": embedding, "body": body, "head": head, "extra": extra})
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        ids = torch.randint(11, (4, 5))

        def step(i: int) -> Any:
            hidden = torch.tanh(body(embedding(ids)))
            if i % 2:
                hidden = extra(hidden)
            loss = F.cross_entropy(head(hidden).flatten(0, 1), ids.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return step, [model, optimizer]

    compare(make, steps=24, recorded=8)


def test_freezing_and_unfreezing() -> None:
    def make() -> Any:
        model, x, y = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(i: int) -> Any:
            model[0].requires_grad_(i // 6 % 2 == 0)
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return step, [model, optimizer]

    compare(make, steps=24, recorded=8)


@pytest.mark.parametrize("foreach", [False, True])
def test_moving_average_copies(foreach: bool) -> None:
    def make() -> Any:
        import copy

        model, x, y = small()
        average = copy.deepcopy(model).requires_grad_(False)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

        def step(i: int) -> Any:
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            decay = min(0.99, (1 + i) / (10 + i))
            with torch.no_grad():
                if foreach:
                    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)
                else:
                    for a, p in zip(average.parameters(), model.parameters(), strict=True):
                        a.mul_(decay).add_(p, alpha=1 - decay)
            return loss

        return step, [model, average, optimizer]

    compare(make)


def test_swa_averaged_model() -> None:
    def make() -> Any:
        model, x, y = small()
        averaged = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(i: int) -> Any:
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            averaged.update_parameters(model)
            return loss

        return step, [model, averaged, optimizer]

    compare(make, recorded=6)
