"""Steps that are not all alike: new shapes, a smaller last batch, evaluation in between, several functions."""

from typing import Any

import pytest
import torch
from tests.helpers import compare
from torch import nn
from torch.nn import functional as F

from markstep import codegen
from markstep.engine import site
from markstep.engine.ending import Interpreted
from markstep.engine.trial import Trial


def small(dropout: float = 0.2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(dropout), nn.Linear(8, 3))


def update(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def test_smaller_last_batch() -> None:
    def make() -> Any:
        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.randn(27, 6), torch.randint(3, (27,))), batch_size=8, shuffle=True
        )
        batches: list[Any] = []

        def step(i: int) -> Any:
            if not batches:
                batches.extend(loader)
            return update(model, optimizer, *batches.pop(0))

        return step, [model, optimizer]

    found = compare(make, steps=28, recorded=8)
    assert len([p for p in found.programs if p.state == "ready" and p.calls > 50]) == 2, found


def test_loader_inside_the_step() -> None:
    """Drawing and collating a batch is no part of the step."""

    def make() -> Any:
        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.randn(24, 6), torch.randint(3, (24,))), batch_size=8, shuffle=True
        )
        state = {"iterator": iter(loader)}

        def step(i: int) -> Any:
            batch = next(state["iterator"], None)
            if batch is None:
                state["iterator"] = iter(loader)
                batch = next(state["iterator"])
            return update(model, optimizer, *batch)

        return step, [model, optimizer]

    compare(make, steps=24, recorded=6, share=0.85)  # collating runs outside of programs


def test_many_shapes() -> None:
    """Lengths repeat in an irregular order; each gets a program."""
    lengths = [4, 7, 4, 5, 7, 4, 4, 5, 7, 5, 5, 7, 4, 5, 7, 4, 7, 5, 4, 4]

    def make() -> Any:
        embedding, head = nn.Embedding(9, 6), nn.Linear(6, 9)
        optimizer = torch.optim.Adam([*embedding.parameters(), *head.parameters()], lr=1e-2)

        def step(i: int) -> Any:
            ids = torch.randint(9, (2, lengths[i]))
            loss = F.cross_entropy(head(embedding(ids).cumsum(1)).flatten(0, 1), ids.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return step, [embedding, head, optimizer]

    compare(make, recorded=8)


def test_always_a_new_shape() -> None:
    """Nothing repeats, so nothing is compiled; the results are eager's."""

    def make() -> Any:
        model = nn.Linear(6, 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

        def step(i: int) -> Any:
            x, y = torch.randn(i + 1, 6), torch.randint(3, (i + 1,))
            return update(model, optimizer, x, y)

        return step, [model, optimizer]

    found = compare(make, recorded=None)
    assert found.compiled_steps == 0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_train_and_eval(mode: Any) -> None:
    def make() -> Any:
        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x, y = torch.randn(5, 6), torch.randint(3, (5,))

        def step(i: int) -> Any:
            if i % 4 < 2:
                model.train()
                return update(model, optimizer, x, y)
            model.eval()
            with mode():
                out = model(x)
                return out.argmax(-1), F.cross_entropy(out, y), (out.argmax(-1) == y).float().mean()

        return step, [model, optimizer]

    compare(make, steps=32, recorded=8)


def test_two_functions_interleaved() -> None:
    def make(wrap: Any) -> Any:
        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x, y = torch.randn(5, 6), torch.randint(3, (5,))

        def evaluate() -> Any:
            model.eval()
            with torch.no_grad():
                result = F.cross_entropy(model(x), y)
            model.train()
            return result

        train, test = wrap(lambda: update(model, optimizer, x, y)), wrap(evaluate)

        def step(i: int) -> Any:
            before = test()
            return before, train(), test() if i % 3 == 0 else None

        return step, [model, optimizer]

    found = compare(make, recorded=8, wraps_itself=True)
    assert found.compiled_steps >= 38


def test_two_models_interleaved_and_sharing() -> None:
    """The result of one compiled function is the input of the other, graph included."""

    def make(wrap: Any) -> Any:
        body, head = nn.Linear(6, 8), nn.Linear(8, 3)
        optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (body, head)]
        x, y = torch.randn(5, 6), torch.randint(3, (5,))

        forward = wrap(lambda: torch.tanh(body(x)))

        def finish(hidden: torch.Tensor) -> Any:
            loss = F.cross_entropy(head(hidden), y)
            for o in optimizers:
                o.zero_grad()
            loss.backward()
            for o in optimizers:
                o.step()
            return loss

        finish = wrap(finish)

        def step(i: int) -> Any:
            hidden = forward()
            return hidden, finish(hidden)

        return step, [body, head, *optimizers]

    compare(make, recorded=8, wraps_itself=True)


def test_gan_as_two_compiled_functions() -> None:
    def make(wrap: Any) -> Any:
        generator, critic = nn.Linear(4, 2), nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
        g_optimizer = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
        c_optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
        real = torch.randn(6, 2)

        def train_critic() -> Any:
            loss = critic(generator(torch.randn(6, 4)).detach()).mean() - critic(real).mean()
            c_optimizer.zero_grad()
            loss.backward()
            c_optimizer.step()
            for p in critic.parameters():
                p.data.clamp_(-0.1, 0.1)
            return loss

        def train_generator() -> Any:
            loss = -critic(generator(torch.randn(6, 4))).mean()
            g_optimizer.zero_grad()
            loss.backward()
            g_optimizer.step()
            return loss

        train_critic, train_generator = wrap(train_critic), wrap(train_generator)

        def step(i: int) -> Any:
            return train_critic(), train_generator() if i % 2 else None

        return step, [generator, critic, g_optimizer, c_optimizer]

    compare(make, recorded=10, wraps_itself=True)


def test_batches_that_are_slices_of_one_tensor() -> None:
    """Same shapes, another offset in the storage every time."""

    def make() -> Any:
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = torch.randn(40, 6), torch.randint(3, (40,))

        def step(i: int) -> Any:
            k = 5 * (i % 8)
            return update(model, optimizer, x[k : k + 5], y[k : k + 5])

        return step, [model, optimizer]

    found = compare(make, steps=32, share=0.85)  # the slices are taken outside of the program
    assert len([p for p in found.programs if p.state == "ready"]) == 1, found


def test_batches_that_are_slices_given_from_outside() -> None:
    def make(wrap: Any) -> Any:
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = torch.randn(40, 6), torch.randint(3, (40,))
        train = wrap(lambda a, b: update(model, optimizer, a, b))

        def step(i: int) -> Any:
            k = 5 * (i % 8)
            return train(x[k : k + 5], y[k : k + 5])

        return step, [model, optimizer]

    found = compare(make, steps=32, wraps_itself=True)
    assert len(found.programs) == 1, found


@pytest.mark.parametrize("absolute", [False, True])
def test_slices_updated_and_viewed_again(absolute: bool) -> None:
    """A slice is changed in place, viewed and returned; and viewed by an offset on its storage, which cuts the step."""

    def make(wrap: Any) -> Any:
        x = torch.randn(40, 6)

        def inner(rows: torch.Tensor) -> Any:
            rows[1:3].mul_(2)
            flat = rows.view(-1)[4:10]
            again = torch.as_strided(rows, (2, 2), (1, 1), 7) if absolute else rows
            return rows.sum(), flat, again, again + 1, rows.t()[2]

        train = wrap(inner)
        return lambda i: train(x[5 * (i % 8) : 5 * (i % 8) + 5]), [x]

    compare(make, steps=32, wraps_itself=True, recorded=None if absolute else 4, share=0.85)  # slicing is outside


def test_random_crops() -> None:
    """Several slices at random places of one tensor, some of them overlapping."""

    def make() -> Any:
        x = torch.randn(6, 40)
        generator = torch.Generator().manual_seed(1)
        weight = nn.Parameter(torch.randn(5))

        def step(i: int) -> Any:
            places = torch.randint(35, (3,), generator=generator).tolist()
            crops = [x[:, k : k + 5] for k in places]
            crops[0].mul_(1.01)
            loss = sum((c @ weight).square().mean() for c in crops)
            weight.grad = None
            loss.backward()
            with torch.no_grad():
                weight.sub_(weight.grad, alpha=0.01)
            return loss, x[i % 6], crops

        return step, [x, weight]

    compare(make, steps=40, recorded=None)


def test_a_model_built_inside_the_step() -> None:
    def make() -> Any:
        def step(i: int) -> Any:
            model = nn.Linear(6, 3)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            losses = [update(model, optimizer, torch.randn(4, 6), torch.randint(3, (4,))) for _ in range(2)]
            return losses, list(model.parameters())

        return step, []

    compare(make)


class Compiled:
    """A compilation that is done at once."""

    failed = False

    def __init__(self, program: Any, options: Any, figures: Any) -> None:
        self.executable = Interpreted(program)

    def poll(self) -> Any:
        return self.executable


def test_a_step_that_changes_after_eager_has_won_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = ["eager", "predict"]

    def settle(trial: Trial, endings: list[Any]) -> None:
        trial.verdict = verdicts.pop(0)

    monkeypatch.setattr(codegen, "submit", Compiled)
    monkeypatch.setattr(Trial, "_settle", settle)
    monkeypatch.setattr(site, "_FIRST_LOOK", 5)

    def make() -> Any:
        model = small(0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(i: int) -> Any:
            rows = 4 if i < 100 else 16
            return update(model, optimizer, torch.ones(rows, 6) * i, torch.arange(rows) % 3)

        return step, [model, optimizer]

    found = compare(make, steps=200, recorded=None, backend="inductor")
    assert not verdicts, found
    ran = [p for p in found.programs if p.runs]
    assert len(ran) >= 2 and ran[-1].runs > 20, str(found)
