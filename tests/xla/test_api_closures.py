"""Step closures: after the step, in order; asynchronous ones in a thread, with their errors at the next one."""

import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from markstep.xla import closures, steps


def test_closures_run_after_the_step_in_order_with_its_values() -> None:
    seen = []
    x = torch.ones(2, device="xla")
    closures.add_step_closure(lambda t: seen.append(t.sum().item()), args=(x,))
    closures.add_step_closure(seen.append, args=("second",))
    assert seen == []
    steps.sync()
    assert seen == [2.0, "second"]
    steps.sync()
    assert seen == [2.0, "second"]


def test_an_error_of_a_closure_is_raised_by_sync() -> None:
    def broken() -> None:
        raise ValueError("broken")

    closures.add_step_closure(broken)
    with pytest.raises(ValueError, match="broken"):
        steps.sync()


def test_asynchronous_closures_do_not_hold_up_the_step() -> None:
    go, done = threading.Event(), threading.Event()
    closures.add_step_closure(lambda: (go.wait(10), done.set()), run_async=True)
    steps.sync()
    assert not done.is_set()
    go.set()
    assert done.wait(10)


def test_an_asynchronous_error_is_raised_at_the_next_asynchronous_closure() -> None:
    started = threading.Event()

    def broken() -> None:
        started.set()
        raise ValueError("broken")

    handler = closures.AsyncClosureHandler()
    handler.run(broken)
    assert started.wait(10)
    handler._waiting.join()
    ran = []
    with pytest.raises(RuntimeError, match="asynchronous step closure failed") as caught:
        handler.run(lambda: ran.append(1))
    assert isinstance(caught.value.__cause__, ValueError) and not ran
    handler.run(lambda: ran.append(2))
    handler._waiting.join()
    assert ran == [2]


def test_closures_of_a_forward_that_runs_again_in_backward() -> None:
    seen = []

    def forward(x: torch.Tensor) -> torch.Tensor:
        closures.add_step_closure(seen.append, args=(threading.get_ident(),))
        return x.sin().exp()

    x = torch.ones(2, device="xla", requires_grad=True)
    checkpoint(forward, x, use_reentrant=True).sum().backward()
    steps.sync()
    assert len(seen) == 2
