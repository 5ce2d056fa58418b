"""Bugs that were found once, each as the smallest step that showed it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.same import difference

import markstep

EXACT = {"backend": "interpreter", "rng": "torch"}


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    return markstep.compile(fn, **EXACT)


def same(make: Callable[[], Callable[[int], Any]], steps: int = 5) -> markstep.Report:
    """`make` builds a step function with its own state; it must return the same under Markstep as eagerly."""
    figures = markstep.explain()
    eager, fast = make(), markstep.compile(make(), **EXACT)
    for k in range(steps):
        torch.manual_seed(k)
        want = eager(k)
        torch.manual_seed(k)
        text = difference(want, fast(k))
        assert text is None, f"step {k}: {text}\n{figures}"
    assert figures.compiled_steps, figures
    return figures


def test_calls_before_a_failing_one_run_once() -> None:
    x = torch.zeros(3)

    @compiled
    def step(k: int) -> None:
        x.add_(1)
        x.index_select(0, torch.tensor([9 if k == 2 else 0]))
        x.add_(10)
        if k == 2:
            x.mul(5)  # another call than in the first steps: everything so far runs here

    for k in range(2):
        step(k)
    before = x.clone()
    with pytest.raises(IndexError):
        step(2)
    assert x.equal(before + 1)
    step(3)
    assert x.equal(before + 12)


def test_a_value_that_fails_leaves_the_calls_before_it_done() -> None:
    x, y = torch.zeros(3), torch.zeros(3)

    @compiled
    def step(k: int) -> None:
        y.add_(1)
        chosen = x.index_select(0, torch.tensor([9 if k == 2 else 0]))
        y.add_(10)
        chosen.sum().item()

    for k in range(2):
        step(k)
    before = y.clone()
    with pytest.raises(IndexError):
        step(2)
    assert y.equal(before + 1)
    step(3)
    assert y.equal(before + 12)


def test_numpy_after_a_value_was_read_early() -> None:
    def make() -> Callable[[int], Any]:
        x = torch.ones(3)

        def step(k: int) -> Any:
            total = (x + 1).sum()
            x.mul_(2)
            return total.item(), x.numpy().tolist()

        return step

    same(make)


def test_numbers_that_a_kernel_refuses_fail_at_their_line() -> None:
    def make() -> Callable[[int], Any]:
        x = torch.zeros(3, dtype=torch.int8)

        def step(k: int) -> Any:
            try:
                x.fill_(k if k < 3 else 1000 * k)
            except RuntimeError as error:
                return str(error), x.clone()
            return x + 1

        return step

    same(make)


def test_not_a_number_into_integers_fails_at_its_line() -> None:
    def make() -> Callable[[int], Any]:
        x = torch.zeros(3, dtype=torch.int64)

        def step(k: int) -> Any:
            try:
                x.masked_fill_(x == 0, float("nan") if k == 3 else k / 2)
            except RuntimeError as error:
                return str(error), x.clone()
            return x + 1

        return step

    same(make)


@pytest.mark.parametrize("zero", [complex(0.0, -0.0), complex(-0.0, 0.0), -0.0])
def test_signs_of_zero_are_not_mixed_up(zero: complex) -> None:
    def make() -> Callable[[int], Any]:
        return lambda k: torch.ones(3, dtype=torch.complex64) * (zero if k % 3 == 2 else zero * 0 + 0.0)

    same(make, 7)


def test_numbers_that_decide_on_a_shape() -> None:
    same(lambda: lambda k: torch.arange(3 + k % 2) + torch.arange(0.0, 1.0, 0.5 / (1 + k % 2)).sum(), 8)


def test_version_counters_of_foreach_operands() -> None:
    def make() -> Callable[[int], Any]:
        x = torch.ones(3)

        def step(k: int) -> Any:
            torch._foreach_add_([x], 1.0 + k)
            return x._version

        return step

    same(make)


def test_backward_formulas_take_eager_paths() -> None:
    """A dispatch mode would make autograd choose other formulas: another sign of zero, another rounding."""

    def make() -> Callable[[int], Any]:
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()

        def step(k: int) -> Any:
            return torch.autograd.grad((x * k).prod() + x.median() ** 2, x)

        return step

    same(make)


def numpy_pair() -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors on the same memory that PyTorch does not know to be related."""
    x = torch.ones(1)
    return x, torch.from_numpy(x.numpy())


def paused_reader(x: torch.Tensor, n: torch.Tensor) -> Any:
    n.add_(1)
    with markstep.pause():
        return x * 2


def value_reader(x: torch.Tensor, n: torch.Tensor) -> Any:
    n.add_(1)
    return x.item(), x.tolist()


def early_writer(x: torch.Tensor, n: torch.Tensor) -> Any:
    y = x * 2
    n.add_(1)
    return n.sum().item(), y


@pytest.mark.parametrize("use", [paused_reader, value_reader, early_writer])
def test_memory_shared_through_numpy(use: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
    def make() -> Callable[[int], Any]:
        x, n = numpy_pair()
        return lambda k: (use(x, n), torch.ones(2) + k)

    figures = markstep.explain()
    eager, fast = make(), markstep.compile(make(), **EXACT)
    for k in range(5):
        text = difference(eager(k), fast(k))
        assert text is None, f"step {k}: {text}\n{figures}"


def test_results_that_share_a_new_storage() -> None:
    with torch.library._scoped_library("markstep_tests", "DEF") as library:
        library.define("halves(Tensor x) -> (Tensor, Tensor)")
        library.impl("halves", lambda x: tuple(torch.cat([x, x * 2]).chunk(2)), "CPU")

        def make() -> Callable[[int], Any]:
            def step(k: int) -> Any:
                with torch.no_grad():
                    a, b = torch.ops.markstep_tests.halves(torch.ones(4) * k)
                return a + 1, b * 3, a, b

            return step

        same(make)


def test_another_default_dtype() -> None:
    def make() -> Callable[[int], Any]:
        def step(k: int) -> Any:
            before = torch.arange(3) / 2
            torch.set_default_dtype(torch.float64 if k % 3 else torch.float32)
            inside = torch.ones(3), torch.arange(3) / 2
            torch.set_default_dtype(torch.float32)
            return before, inside, torch.arange(3) / 2

        return step

    same(make, 8)
