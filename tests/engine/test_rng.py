"""With rng="torch" every random number is eager's own, in order, and the generator ends in eager's state."""

from typing import Any

import pytest
import torch
from tests.helpers import compare
from torch import nn
from torch.nn import functional as F


def training(body: Any) -> Any:
    def make() -> Any:
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(5, 6)

        def step(i: int) -> Any:
            return body(model, optimizer, x, i)

        return step, [model, optimizer]

    return make


def update(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def test_every_kind_of_random_operator() -> None:
    def body(model: Any, optimizer: Any, x: torch.Tensor, i: int) -> Any:
        p = x.sigmoid()
        values = [
            torch.rand(3), torch.randn(2, 2), torch.randint(10, (4,)), torch.randperm(5), torch.rand_like(x),
            torch.bernoulli(p), torch.normal(x, 1.0), torch.poisson(p), torch.empty(3).uniform_(-1, 1),
            torch.empty(3).exponential_(), torch.empty(3).log_normal_(), torch.empty(3).geometric_(0.5),
            x.clone().random_(0, 9),
            F.dropout(x, 0.3), F.dropout2d(x.view(5, 2, 3, 1), 0.3), F.alpha_dropout(x, 0.3, training=True),
            F.rrelu(x, training=True), F.gumbel_softmax(x), torch.distributions.Normal(x, 1.0).rsample(),
            torch.distributions.Categorical(logits=x).sample(), nn.init.xavier_uniform_(torch.empty(3, 3)),
        ]  # fmt: skip
        return update(model, optimizer, x), values

    compare(training(body))


def test_state_read_and_set_inside_the_step() -> None:
    def body(model: Any, optimizer: Any, x: torch.Tensor, i: int) -> Any:
        first = torch.rand(2)
        state = torch.get_rng_state()
        second = torch.rand(2)
        loss = update(model, optimizer, x)
        torch.set_rng_state(state)
        third = torch.rand(2)
        with torch.random.fork_rng(devices=[]):
            fourth = torch.rand(2)
        return loss, first, second, third, fourth, torch.rand(2), state

    found = compare(training(body))
    assert {what for what, _ in found.boundaries} == {"end of the step"}, found


def test_seeding_inside_the_step() -> None:
    def body(model: Any, optimizer: Any, x: torch.Tensor, i: int) -> Any:
        first = torch.rand(2)
        torch.manual_seed(i)
        second = torch.rand(2)
        loss = update(model, optimizer, x)
        seed = torch.initial_seed()
        return loss, first, second, seed

    compare(training(body))


def test_seeding_between_steps() -> None:
    compare(
        training(lambda model, optimizer, x, i: update(model, optimizer, x)),
        after=lambda i, state: [torch.manual_seed(i), torch.rand(3)] if i % 3 == 0 else None,
    )


@pytest.mark.parametrize("where", ["default", "own"])
def test_generator_argument(where: str) -> None:
    """A generator is an object that no program can hold; its numbers are eager's all the same."""
    generators: list[torch.Generator] = []

    def make() -> Any:
        generator = torch.Generator().manual_seed(3) if where == "own" else torch.default_generator
        generators[:] = [generator]

        def body(model: Any, optimizer: Any, x: torch.Tensor, i: int) -> Any:
            before = torch.rand(2)
            noise = torch.randn(5, 6, generator=generator)
            other = torch.empty(3).normal_(generator=generator)
            loss = update(model, optimizer, x + noise)
            return loss, before, other, generator.get_state()

        return training(body)()

    compare(make, recorded=8, share=0.8)


def test_generator_state_methods() -> None:
    """The state is read and set on the generator object itself, past torch.get_rng_state."""

    def body(model: Any, optimizer: Any, x: torch.Tensor, i: int) -> Any:
        first = torch.rand(2)
        state = torch.default_generator.get_state()
        second = torch.rand(2)
        torch.default_generator.set_state(state)
        third = torch.rand(2)
        torch.default_generator.manual_seed(i)
        loss = update(model, optimizer, x)
        return loss, first, second, third, state

    compare(training(body), recorded=8, share=0.8)


def test_python_and_numpy_randomness() -> None:
    import random

    import numpy as np

    def make() -> Any:
        python, numbers = random.Random(0), np.random.default_rng(0)

        def body(model: Any, optimizer: Any, x: torch.Tensor, i: int) -> Any:
            scaled = x * python.random() + torch.from_numpy(numbers.random((5, 6)).astype(np.float32))
            return update(model, optimizer, scaled)

        return training(body)()

    compare(make)
