"""Exceptions and interrupts: what is left is what eager execution would have left, and the next step works."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.helpers import EXACT, assert_same, compare, snapshot
from torch import nn
from torch.nn import functional as F

import markstep


class Stop(Exception):
    """Raised by the user's code."""


def failing_at(line: str) -> Any:
    """A loop that fails at one line of its step in every fourth step, and goes on."""

    def make() -> Any:
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x, y = torch.randn(5, 6), torch.randn(5, 4)
        kept: list[Any] = []

        def check(i: int, here: str) -> None:
            if i % 4 == 3 and here == line:
                raise Stop

        def step(i: int) -> Any:
            kept.clear()
            check(i, "start")
            out = model(x)
            kept.append(out)
            check(i, "forward")
            loss = F.mse_loss(out, y)
            if i % 4 == 3 and line == "hook":
                out.register_hook(lambda g: check(i, "hook"))
            loss.backward()
            kept.append(loss.detach())
            check(i, "backward")
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            check(i, "clip")
            optimizer.step()
            check(i, "update")
            optimizer.zero_grad()
            return loss

        return step, [model, optimizer, kept]

    return make


def caught(make: Any) -> Any:
    """The loop with every step's exception caught outside of Markstep."""

    def wrapped(wrap: Any) -> Any:
        inner, state = make()
        inner = wrap(inner)

        def step(i: int) -> Any:
            try:
                return inner(i)
            except Stop:
                return "stopped"
            except RuntimeError as error:
                return str(error)

        return step, state

    return wrapped


@pytest.mark.parametrize("line", ["start", "forward", "hook", "backward", "clip", "update"])
def test_exception_in_the_middle_leaves_what_eager_leaves(line: str) -> None:
    compare(caught(failing_at(line)), steps=24, recorded=10, share=0, wraps_itself=True)


def test_error_of_an_operator_with_wrong_shapes() -> None:
    """Torch's own message at the user's line."""

    def make() -> Any:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(i: int) -> Any:
            x = torch.randn(3, 4)
            optimizer.zero_grad()
            model(x).sum().backward()
            if i % 3 == 2:
                torch.mm(x, x)
            optimizer.step()

        return step, [model, optimizer]

    compare(caught(make), recorded=8, share=0, wraps_itself=True)


def test_exception_caught_inside_the_step() -> None:
    """Code that tries an operator and takes another way when it fails."""

    def make() -> Any:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(3, 4)

        def step(i: int) -> Any:
            out = model(x)
            try:
                bad = torch.mm(out, out)
            except RuntimeError:
                bad = torch.mm(out, out.t())
            loss = bad.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return step, [model, optimizer]

    compare(make, recorded=20, share=0)


def test_error_raised_by_a_deferred_operator() -> None:
    """Bad values (an index out of range, a failing factorisation) are only seen when the call runs: at the boundary."""
    table = nn.Embedding(4, 3)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

    @markstep_step
    def step(ids: torch.Tensor) -> torch.Tensor:
        loss = table(ids).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(5):
        step(torch.tensor([0, 1, 2]))
    assert markstep.explain().compiled_steps
    before = snapshot(table.weight.detach())
    with pytest.raises(IndexError, match="out of range") as info:
        step(torch.tensor([0, 1, 7]))
    assert any("when Markstep ran the step" in note and "test_exceptions.py" in note for note in info.value.__notes__)
    assert_same(before, snapshot(table.weight.detach()), "weights after a failed forward")
    after = step(torch.tensor([0, 1, 2]))
    assert torch.isfinite(after)
    assert (table.weight.detach() != before[""]).any()


def test_error_raised_by_a_deferred_operator_at_a_value() -> None:
    def make(wrap: Any) -> Any:
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def inner(i: int) -> Any:
            matrix = model.weight @ model.weight.t() * (0.0 if i % 5 == 4 else 1.0)
            factor = torch.linalg.cholesky(matrix)
            loss = factor.diagonal().log().sum()
            value = loss.item()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss, value

        compiled = wrap(inner)

        def step(i: int) -> Any:
            try:
                return compiled(i)
            except torch.linalg.LinAlgError as error:
                return str(error)

        return step, [model, optimizer]

    compare(make, wraps_itself=True, recorded=8, share=0)


def markstep_step(fn: Any) -> Any:
    return markstep.compile(fn, **EXACT)


@torch.library.custom_op("markstep_tests::interrupt", mutates_args=())
def interrupt(x: torch.Tensor, armed: torch.Tensor) -> torch.Tensor:
    """Sends this process a SIGINT while the operator runs, if `armed` is not zero."""
    if armed:
        os.kill(os.getpid(), signal.SIGINT)
    return x.clone()


@interrupt.register_fake
def _(x: torch.Tensor, armed: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python's handler of SIGINT, also where the tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_keyboard_interrupt_during_a_replay_is_delivered_after_it() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    armed, x = torch.zeros(()), torch.randn(3, 4)
    updates = torch.zeros(())

    @markstep_step
    def step() -> torch.Tensor:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        interrupt(loss.detach(), armed)
        optimizer.step()
        updates.add_(1)
        return loss

    for _ in range(5):
        step()
    assert markstep.explain().compiled_steps == 3
    weight = model.weight.detach().clone()
    armed.fill_(1)
    with pytest.raises(KeyboardInterrupt):
        step()
    armed.fill_(0)
    assert updates.item() == 6
    expected = weight.add(model.weight.grad, alpha=-0.1)
    assert torch.equal(model.weight.detach(), expected), "the update was not whole"
    step()
    assert updates.item() == 7
    assert markstep.explain().compiled_steps == 4


@pytest.mark.usefixtures("interruptible")
def test_keyboard_interrupt_between_calls() -> None:
    """An interrupt while Python predicts: what was called so far has happened, as in eager execution."""

    def make() -> Any:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, count = torch.randn(3, 4), torch.zeros(())

        def step(i: int) -> Any:
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            count.add_(1)
            if i == 11:
                signal.raise_signal(signal.SIGINT)
            optimizer.step()
            return loss

        return step, [model, optimizer, count]

    def outer(wrap: Any) -> Any:
        inner, state = make()
        inner = wrap(inner)

        def step(i: int) -> Any:
            try:
                return inner(i)
            except KeyboardInterrupt:
                return "interrupted"

        return step, state

    compare(outer, wraps_itself=True, recorded=5)


def test_generator_that_is_left_inside_a_step() -> None:
    """`break` and `return` out of `with markstep.step()` end the step like its last line."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(3, 4)

    def run() -> torch.Tensor:
        for _ in range(3):
            with markstep.step(**EXACT):
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                break
        return loss

    losses = [run().item() for _ in range(8)]
    assert losses == sorted(losses, reverse=True)
    assert markstep.explain().compiled_steps >= 5


def test_nested_regions_are_one_step() -> None:
    def make(wrap: Any) -> Any:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(3, 4)
        update = wrap(optimizer.step)

        def inner(i: int) -> Any:
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            update()
            return loss

        return wrap(inner), [model, optimizer]

    found = compare(make, wraps_itself=True)
    assert len(found.boundaries) == 1, found
