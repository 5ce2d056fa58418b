"""Views and in-place updates of every kind: on parameters, buffers, inputs and results, overlapping ones included."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import compare
from torch import nn
from torch.nn import functional as F


def job(body: Callable[[dict[str, Any], int], Any], **tensors: torch.Tensor) -> Callable[[], Any]:
    """A training loop whose step also runs `body(state, step number)` on tensors that live across steps."""

    def make() -> Any:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        state: dict[str, Any] = {k: v.clone() for k, v in tensors.items()}
        state["model"] = model
        x = torch.randn(3, 4)

        def step(i: int) -> Any:
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss, body(state, i)

        return step, [state, optimizer]

    return make


def grid(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def slices(s: dict[str, Any], i: int) -> Any:
    a = s["a"]
    a[1:3, ::2] += 1
    a[:, 0] = a[:, 1] * 2
    a[..., -1].mul_(0.5)
    a.t()[2].sub_(a[2])
    return a[0], a.view(-1)[3:7], a.unfold(0, 2, 1)


def overlapping(s: dict[str, Any], i: int) -> Any:
    a = s["a"].view(-1)
    left, right = a[:-4], a[4:]
    right.add_(1)
    left.copy_(left * 0.5 + right.detach().clone())
    middle = a.as_strided((5,), (2,), 1)
    middle.mul_(1.1)
    return left, right, middle, a.as_strided((3, 3), (1, 1))


def view_chain(s: dict[str, Any], i: int) -> Any:
    a = s["a"]
    b = a.transpose(0, 1).unsqueeze(0).expand(2, 4, 4)
    c = a.view(2, 8).narrow(1, 2, 4).chunk(2, dim=1)
    c[1].zero_()
    d = a.diagonal()
    d += 3
    torch.diagonal(a, 1).fill_(7)
    return b, c, d, a.flatten(), a.reshape(8, 2), a.movedim(0, 1)


def base_changed_after_view(s: dict[str, Any], i: int) -> Any:
    fresh = torch.ones(4, 4) * s["a"]
    view = fresh[1]
    fresh.add_(1)
    copy = view.clone()
    view.zero_()
    return fresh, view, copy


def out_variants(s: dict[str, Any], i: int) -> Any:
    torch.add(s["a"], 1, out=s["b"])
    torch.mul(s["a"][0], 2, out=s["b"][1])
    values, index = torch.empty(4), torch.empty(4, dtype=torch.long)
    torch.max(s["b"], dim=1, out=(values, index))
    return values, index


def indexed(s: dict[str, Any], i: int) -> Any:
    a, rows = s["a"], torch.tensor([0, 2, 2])
    a.index_add_(0, rows, torch.ones(3, 4))
    a[rows, 1] = -1.0
    a.index_put_((rows, torch.tensor([3, 3, 3])), torch.ones(3), accumulate=True)
    a.scatter_(1, torch.zeros(4, 1, dtype=torch.long), 5.0)
    a.masked_fill_(a > 20, 1.0)
    s["b"].index_copy_(0, torch.tensor([1]), a[:1])
    return a.gather(1, torch.ones(4, 2, dtype=torch.long)), a[rows], torch.where(a > 1, a, -a)


def swapped(s: dict[str, Any], i: int) -> Any:
    s["a"], s["b"] = s["b"], s["a"]
    s["a"].add_(1)
    s["b"] = s["b"] + s["a"]


def rolled(s: dict[str, Any], i: int) -> Any:
    s["queue"][i % 4].copy_(s["model"].bias.detach())
    return s["queue"].mean(0)


def data_attribute(s: dict[str, Any], i: int) -> Any:
    s["model"].weight.data.mul_(0.99)
    s["model"].bias.data = s["model"].bias.data + 0.01
    alias = s["model"].weight.detach()
    alias[0, 0] = 0.5
    return alias, s["model"].weight.data[0]


def same_twice(s: dict[str, Any], i: int) -> Any:
    a = s["a"]
    a.add_(a)
    a.mul_(0.5).sub_(a.mean())
    torch.add(a, a.t(), out=s["b"])
    return a, a


def dtype_views(s: dict[str, Any], i: int) -> Any:
    bits = s["a"].view(torch.int32)
    bits.bitwise_and_(-2)
    pairs = torch.view_as_complex(s["a"].view(4, 2, 2))
    pairs.mul_(1j)
    return bits, pairs, pairs.real, pairs.imag, pairs.conj(), torch.view_as_real(pairs), pairs.conj().imag


def resized(s: dict[str, Any], i: int) -> Any:
    t = torch.zeros(2)
    t.resize_(6).fill_(3)
    u = torch.empty(0)
    torch.cat([s["a"][0], s["a"][1]], out=u)
    return t, u


def metadata_in_place(s: dict[str, Any], i: int) -> Any:
    t = s["a"] * 2
    t.t_()
    t.unsqueeze_(0)
    t.squeeze_(0)
    t.transpose_(0, 1)
    t += 1
    s["b"].t_()
    s["b"].mul_(0.5)
    return t, t.detach_()


def set_storage(s: dict[str, Any], i: int) -> Any:
    t = torch.empty(0)
    t.set_(s["a"])
    t.add_(1)
    s["b"].set_(torch.full((4, 4), float(i)))
    return t, s["b"] * 2


def copies_between_dtypes(s: dict[str, Any], i: int) -> Any:
    s["half"].copy_(s["a"])
    s["a"].copy_(s["half"] * 0.9)
    s["whole"] += s["a"].to(torch.long)
    s["whole"].bitwise_xor_(3).remainder_(17)
    return s["half"].double(), s["whole"] // 2, s["whole"].bool(), s["a"].to(torch.float32)


STATE = {
    "a": grid(4, 4),
    "b": grid(4, 4) * 0.5,
    "queue": torch.zeros(4, 4),
    "half": torch.zeros(4, 4).half(),
    "whole": torch.arange(16).view(4, 4),
}
BODIES = [
    slices, overlapping, view_chain, base_changed_after_view, out_variants, indexed, swapped, rolled, data_attribute,
    same_twice, dtype_views, metadata_in_place, copies_between_dtypes,
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_views_and_updates(body: Any) -> None:
    compare(job(body, **STATE), recorded=9 if body is rolled else 5)


@pytest.mark.parametrize("body", [resized, set_storage], ids=lambda f: f.__name__)
def test_calls_that_change_a_storage_end_the_program(body: Any) -> None:
    compare(job(body, **STATE), share=0.6)


def test_views_of_parameters_in_the_graph() -> None:
    """One flat parameter, its views as weights, updated through views and as a whole."""

    def make() -> Any:
        flat = nn.Parameter(torch.randn(20))
        optimizer = torch.optim.Adam([flat], lr=1e-2)
        x = torch.randn(3, 4)

        def step(i: int) -> Any:
            weight, bias = flat[:16].view(4, 4), flat[16:]
            loss = F.linear(x, weight, bias).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                flat[:4].clamp_(-1, 1)
            return loss, weight, bias

        return step, [flat, optimizer]

    compare(make)


def test_in_place_operations_in_the_graph() -> None:
    def make() -> Any:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(3, 4)

        def step(i: int) -> Any:
            h = model(x)
            h[:, 1] = h[:, 0] * 2
            h.mul_(2).add_(1)
            h[0].sub_(3)
            out = torch.zeros(3, 4)
            out[:, :2] = h[:, 2:]
            out += h.clone()
            a, b = out.sin_().unbind(1)[:2]
            loss = (out.sum() + (a * b).sum()).square()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss, out

        return step, [model, optimizer]

    compare(make)


def test_results_kept_by_the_user_are_not_overwritten() -> None:
    """What a step returned keeps its value, and the user may change it between steps."""

    def make() -> Any:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept: list[torch.Tensor] = []
        x = torch.randn(3, 4)

        def step(i: int) -> Any:
            out = model(x)
            loss = out.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            kept.append(out.detach())
            if len(kept) > 3:
                del kept[0]
            return [k.sum() for k in kept]

        def after(i: int, state: Any) -> None:
            if kept:
                kept[0].add_(100.0)

        return step, [model, optimizer, kept], after

    holder: list[Any] = []

    def plain() -> Any:
        step, state, after = make()
        holder[:] = [after]
        return step, state

    compare(plain, after=lambda i, state: holder[0](i, state), recorded=7)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_training(dtype: torch.dtype) -> None:
    def make() -> Any:
        weight = nn.Parameter(torch.randn(4, 4, dtype=dtype))
        optimizer = torch.optim.Adam([weight], lr=1e-2)
        x = torch.randn(3, 4, dtype=dtype)

        def step(i: int) -> Any:
            out = (x @ weight.conj()).mT.resolve_conj()
            loss = out.abs().pow(2).mean() + torch.view_as_real(weight).square().sum() + weight.imag.sum()
            spectrum = torch.fft.fft(out)
            optimizer.zero_grad()
            (loss + spectrum.abs().mean()).backward()
            optimizer.step()
            return loss, weight.H, spectrum, out.conj() * 2, out.angle()

        return step, [weight, optimizer]

    compare(make)


def test_empty_and_zero_dimensional_tensors() -> None:
    def make() -> Any:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scale, nothing = torch.tensor(2.0), torch.empty(0, 4)
        count = torch.tensor(0)

        def step(i: int) -> Any:
            out = model(torch.cat([nothing, torch.ones(2, 4)])) * scale
            empty = model(nothing)
            loss = out.mean() + empty.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count.add_(1)
            scale.mul_(0.9)
            return (
                loss,
                empty,
                empty.t(),
                nothing.sum(),
                count * 2,
                torch.zeros(3, 0, 2).sum(-1),
                torch.tensor(3) / scale,
            )

        return step, [model, optimizer, scale, count]

    compare(make)


def test_memory_shared_with_numpy() -> None:
    """A parameter on numpy's memory: the array must show the update after the step, and its changes must be seen."""

    def make() -> Any:
        array = np.ones((4, 4), dtype=np.float32)
        weight = nn.Parameter(torch.from_numpy(array))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        x = torch.randn(3, 4)

        def step(i: int) -> Any:
            loss = (x @ weight).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        def after(i: int) -> None:
            array[0] += 0.5

        return step, [weight, optimizer], after

    holder: list[Any] = []

    def plain() -> Any:
        step, state, after = make()
        holder[:] = [after]
        return step, state

    compare(plain, after=lambda i, state: holder[0](i))


def test_two_storages_on_the_same_memory() -> None:
    """Torch cannot tell that two arrays of numpy overlap; neither may Markstep reorder what happens to them."""

    def make() -> Any:
        array = np.arange(12, dtype=np.float32)
        a, b = torch.from_numpy(array[:8]), torch.from_numpy(array[4:])
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(i: int) -> Any:
            loss = model(a[:4]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            a.mul_(0.5)
            b.add_(1)
            c = a * 2
            b.sub_(c)
            return loss, c

        return step, [model, optimizer, a, b]

    found = compare(make, recorded=None)
    assert sum(p.interpreted for p in found.programs) >= 15, f"overlapping memory is replayed call by call\n{found}"
