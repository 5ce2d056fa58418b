"""Hooks, custom functions, checkpointing, gradients that the user touches: autograd does it all in every step."""

from typing import Any

import pytest
import torch
from tests.helpers import compare
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def small(dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(5, 6), torch.randn(5, 3)


def test_forward_and_backward_hooks_of_modules() -> None:
    def make() -> Any:
        model, (x, y) = small(), data()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        log: dict[str, Any] = {"calls": 0}

        def pre(module: nn.Module, args: Any) -> Any:
            log["calls"] += 1
            return (args[0] * 1.5,)

        def forward(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
            log["activation"] = out.detach()
            return out + 0.1

        def backward(module: nn.Module, grad_in: Any, grad_out: Any) -> Any:
            log["seen"] = grad_out[0]
            return tuple(g * 0.5 if g is not None else None for g in grad_in)

        def backward_pre(module: nn.Module, grad_out: Any) -> Any:
            log["calls"] += 1
            return (grad_out[0] * 2,)

        model[0].register_forward_pre_hook(pre)
        model[1].register_forward_hook(forward)
        model[0].register_full_backward_hook(backward)
        model[3].register_full_backward_pre_hook(backward_pre)

        def step(i: int) -> Any:
            loss = F.mse_loss(model(x.clone().requires_grad_()), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return step, [model, optimizer, log]

    compare(make)


def test_tensor_hooks() -> None:
    def make() -> Any:
        model, (x, y) = small(), data()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        log: dict[str, Any] = {"accumulated": 0}
        model[0].weight.register_hook(lambda g: g.clamp(-0.1, 0.1))

        def accumulated(p: torch.Tensor) -> None:
            log["accumulated"] += 1
            assert p.grad is not None
            log["norm"] = p.grad.norm()

        model[3].weight.register_post_accumulate_grad_hook(accumulated)

        def step(i: int) -> Any:
            hidden = model[0](x)
            hidden.retain_grad()
            hidden.register_hook(lambda g: log.update(hidden=g) or g * 0.5)
            loss = F.mse_loss(model[3](model[1](hidden)), y)
            optimizer.zero_grad()
            loss.backward()
            log["retained"] = hidden.grad
            optimizer.step()
            return loss

        return step, [model, optimizer, log]

    compare(make)


def test_optimizer_in_the_backward_pass() -> None:
    def make() -> Any:
        model, (x, y) = small(), data()
        optimizers = {p: torch.optim.Adam([p], lr=1e-2) for p in model.parameters()}

        def update(p: nn.Parameter) -> None:
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)

        def step(i: int) -> Any:
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        return step, [model, list(optimizers.values())]

    compare(make)


class Scale(torch.autograd.Function):
    """Saves a tensor and a number; its backward runs operators of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x.sin() * factor

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad * x.cos() * ctx.factor, None


class InPlace(torch.autograd.Function):
    """Changes its argument and returns it together with an integer result that has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        x.mul_(2)
        ctx.mark_dirty(x)
        index = x.argmax(-1)
        ctx.mark_non_differentiable(index)
        return x, index

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        return grad * 2


def test_custom_functions() -> None:
    def make() -> Any:
        model, (x, y) = small(), data()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(i: int) -> Any:
            hidden = Scale.apply(model[0](x), 0.5 + i)
            out, index = InPlace.apply(model[3](hidden) * 1)
            loss = F.mse_loss(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss, index

        return step, [model, optimizer]

    compare(make)


@torch.library.custom_op("markstep_tests::smooth", mutates_args=())
def smooth(x: torch.Tensor, width: float) -> torch.Tensor:
    """A custom operator with a kernel in Python."""
    return torch.tanh(x / width) * width


smooth.register_autograd(
    lambda ctx, grad: (grad * (1 - torch.tanh(ctx.saved_tensors[0] / ctx.width) ** 2), None),
    setup_context=lambda ctx, inputs, output: (ctx.save_for_backward(inputs[0]), setattr(ctx, "width", inputs[1])),
)


@torch.library.custom_op("markstep_tests::accumulate", mutates_args=("total",))
def accumulate(total: torch.Tensor, x: torch.Tensor) -> None:
    """A custom operator that changes its argument."""
    total += x.sum()


def test_custom_registered_operators() -> None:
    def make() -> Any:
        model, (x, y) = small(), data()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        total = torch.zeros(())

        def step(i: int) -> Any:
            hidden = smooth(model[0](x), 1.0 + i / 10)
            accumulate(total, hidden.detach())
            loss = F.mse_loss(model[3](hidden), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return step, [model, optimizer, total]

    found = compare(make)
    assert {what for what, _ in found.boundaries} == {"end of the step"}, found


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("preserve", [False, True])
def test_checkpoint_with_dropout(reentrant: bool, preserve: bool) -> None:
    """The recomputation uses the same dropout mask if the generator's state is preserved, and else another one."""

    def make() -> Any:
        blocks, head, (x, y) = nn.ModuleList(small(0.5) for _ in range(2)), nn.Linear(3, 6), data()
        optimizer = torch.optim.AdamW([*blocks.parameters(), *head.parameters()], lr=1e-2)

        def step(i: int) -> Any:
            hidden = x.clone().requires_grad_()
            for block in blocks:
                hidden = head(checkpoint(block, hidden, use_reentrant=reentrant, preserve_rng_state=preserve))
            loss = F.mse_loss(hidden[:, :3], y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss, torch.rand(3)

        return step, [blocks, head, optimizer]

    found = compare(make)
    assert {what for what, _ in found.boundaries} == {"end of the step"}, found


def test_checkpoint_sequential_under_autocast() -> None:
    def make() -> Any:
        model, (x, y) = (
            nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.2), nn.GELU()) for _ in range(4)]),
            data(),
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(i: int) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = checkpoint_sequential(model, 2, x.clone().requires_grad_(), use_reentrant=False)
                loss = F.mse_loss(out[:, :3].float(), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return step, [model, optimizer]

    compare(make)


def test_selective_checkpoint() -> None:
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    def make() -> Any:
        model, (x, y) = small(0.3), data()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def contexts() -> Any:
            return create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])

        def step(i: int) -> Any:
            out = checkpoint(model, x.clone().requires_grad_(), use_reentrant=False, context_fn=contexts)
            loss = F.mse_loss(out, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return step, [model, optimizer]

    compare(make)


def test_gradients_read_edited_and_kept() -> None:
    def make() -> Any:
        model, (x, y) = small(), data()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        kept: dict[str, Any] = {"history": []}

        def step(i: int) -> Any:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            for p in model.parameters():
                assert p.grad is not None
                p.grad += 0.01 * p.detach()
            model[0].bias.grad = model[0].bias.grad.sign()
            model[0].weight.grad.data.clamp_(-0.1, 0.1)
            model[3].bias.grad = None
            kept["last"] = [p.grad for p in model.parameters()]
            kept["history"] = [*kept["history"][-2:], model[3].weight.grad.clone()]
            optimizer.step()
            return loss

        return step, [model, optimizer, kept]

    compare(make)


def test_gradients_kept_while_zeroed_in_place() -> None:
    """A kept reference to p.grad sees zero_grad(set_to_none=False) of the next step."""

    def make() -> Any:
        model, (x, y) = small(), data()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept: list[Any] = []

        def step(i: int) -> Any:
            optimizer.zero_grad(set_to_none=False)
            loss = F.mse_loss(model(x), y)
            loss.backward()
            kept[:] = [p.grad for p in model.parameters()]
            optimizer.step()
            return loss

        return step, [model, optimizer, kept]

    compare(make)


@pytest.mark.parametrize("to_none", [False, True])
@pytest.mark.parametrize("where", ["before", "after"])
def test_accumulation(to_none: bool, where: str) -> None:
    """Four micro-batches an update, each micro-batch a step of its own."""

    def make() -> Any:
        model, (x, y) = small(0.1), data()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(i: int) -> Any:
            if where == "before" and i % 4 == 0:
                optimizer.zero_grad(set_to_none=to_none)
            loss = F.mse_loss(model(x + i), y) / 4
            loss.backward()
            if i % 4 == 3:
                optimizer.step()
                if where == "after":
                    optimizer.zero_grad(set_to_none=to_none)
            return loss

        return step, [model, optimizer]

    compare(make, steps=32, recorded=14)


def test_accumulation_inside_one_step() -> None:
    def make() -> Any:
        model, (x, y) = small(0.1), data()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(i: int) -> Any:
            losses = []
            for k in range(4):
                loss = F.mse_loss(model(x * (1 + k / 10)), y) / 4
                loss.backward()
                losses.append(loss.detach())
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return sum(losses)

        return step, [model, optimizer]

    compare(make)


def test_double_backward() -> None:
    """A gradient penalty: the gradient is part of the graph."""

    def make() -> Any:
        model, (x, _) = small(), data()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

        def step(i: int) -> Any:
            inputs = x.clone().requires_grad_()
            (grad,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
            penalty = ((grad.norm(2, dim=1) - 1) ** 2).mean()
            optimizer.zero_grad()
            penalty.backward()
            optimizer.step()
            return penalty, grad

        return step, [model, optimizer]

    compare(make)


def test_retain_graph_and_two_losses() -> None:
    def make() -> Any:
        model, (x, y) = small(), data()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

        def step(i: int) -> Any:
            out = model(x)
            first, second = F.mse_loss(out, y), out.abs().mean()
            optimizer.zero_grad()
            first.backward(retain_graph=True)
            (0.1 * second).backward()
            optimizer.step()
            return first, second

        return step, [model, optimizer]

    compare(make)


def test_graph_that_outlives_the_step() -> None:
    """Forward in one step, backward in the next: saved tensors must have their values then."""

    def make() -> Any:
        model, (x, y) = small(), data()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        waiting: list[Any] = []

        def step(i: int) -> Any:
            if waiting:
                optimizer.zero_grad()
                waiting.pop().backward()
            loss = F.mse_loss(model(x * 0.5), y)
            waiting.append(loss)
            return loss

        return step, [model, optimizer]

    compare(make)


def test_backward_outside_of_the_step() -> None:
    def make(wrap: Any) -> Any:
        model, (x, y) = small(), data()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        forward = wrap(lambda: F.mse_loss(model(x), y))

        def step(i: int) -> Any:
            loss = forward()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return step, [model, optimizer]

    compare(make, share=0, wraps_itself=True)


def test_saved_tensor_hooks_and_anomaly_mode() -> None:
    def make() -> Any:
        model, (x, y) = small(), data()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        counts = {"pack": 0, "unpack": 0}

        def pack(t: torch.Tensor) -> Any:
            counts["pack"] += 1
            return t.to(torch.bfloat16), t.dtype

        def unpack(packed: Any) -> torch.Tensor:
            counts["unpack"] += 1
            return packed[0].to(packed[1])

        def step(i: int) -> Any:
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return step, [model, optimizer, counts]

    compare(make)


def test_functorch_gradients() -> None:
    """torch.func transforms run below the mode as ordinary operators."""
    from torch.func import functional_call, grad, vmap

    def make() -> Any:
        model, (x, y) = nn.Linear(6, 3), data()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def loss_of(params: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return F.mse_loss(functional_call(model, params, (a,)), b)

        def step(i: int) -> Any:
            params = {k: v.detach() for k, v in model.named_parameters()}
            each = vmap(grad(loss_of), (None, 0, 0))(params, x, y)
            for k, p in model.named_parameters():
                p.grad = each[k].mean(0)
            optimizer.step()
            return each

        return step, [model, optimizer]

    compare(make)


def test_weight_and_spectral_norm() -> None:
    """Parametrizations recompute weights, and power iteration updates buffers in place."""

    def make() -> Any:
        model, (x, y) = small(), data()
        torch.nn.utils.parametrizations.weight_norm(model[0])
        torch.nn.utils.parametrizations.spectral_norm(model[3])
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

        def step(i: int) -> Any:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return step, [model, optimizer]

    compare(make)
