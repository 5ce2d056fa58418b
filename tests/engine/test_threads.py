"""Threads and processes beside the training thread: each thread has its own engine, workers are left alone."""

import _thread
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests.helpers import EXACT, assert_same, compare, snapshot
from torch import nn
from torch.nn import functional as F

import markstep


def training(seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = torch.randn(5, 6, generator=generator), torch.randint(3, (5,), generator=generator)

    def step() -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, [model, optimizer]


@pytest.mark.parametrize("shared", [False, True], ids=["own-function", "same-function"])
def test_every_thread_trains_its_own_model(shared: bool) -> None:
    expected = []
    for seed in range(3):
        step, state = training(seed)
        losses = [step().detach() for _ in range(20)]
        expected.append(snapshot([losses, state]))
    jobs = [training(seed) for seed in range(3)]
    train = markstep.compile(lambda step: step(), **EXACT)
    results: list[Any] = [None] * 3
    barrier = threading.Barrier(3)

    def work(k: int) -> None:
        step, state = jobs[k]
        compiled = (lambda: train(step)) if shared else markstep.compile(step, **EXACT)
        barrier.wait()
        results[k] = snapshot([[compiled().detach() for _ in range(20)], state])

    workers = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    for k in range(3):
        assert_same(expected[k], results[k], f"thread {k}")
    assert markstep.explain().compiled_steps >= 3 * 16, markstep.explain()


def test_a_thread_outside_of_steps_is_not_followed() -> None:
    """A thread that works with ordinary tensors while another thread is inside a step."""
    inside, done = threading.Event(), threading.Event()
    seen: list[float] = []

    def other() -> None:
        inside.wait(30)
        for i in range(50):
            seen.append((torch.full((3,), float(i)) * 2).sum().item())
        done.set()

    worker = threading.Thread(target=other)
    worker.start()
    step, _ = training(0)

    def body() -> torch.Tensor:
        loss = step()
        inside.set()
        done.wait(30)
        return loss

    compiled = markstep.compile(body, **EXACT)
    for _ in range(5):
        compiled()
    worker.join()
    assert seen == [6.0 * i for i in range(50)]
    assert markstep.explain().compiled_steps >= 1


@pytest.mark.parametrize("how", ["start", "queue", "pool"])
def test_a_thread_that_is_handed_a_pending_tensor_sees_its_values(how: str) -> None:
    """A helper thread is started, or woken up, in the middle of a step, and hands its own results back at its end."""
    todo: queue.Queue[Any] = queue.Queue()
    pool = ThreadPoolExecutor(1)

    def make() -> Any:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, seen = torch.randn(3, 4), [0.0]

        def read(t: torch.Tensor) -> None:
            seen.append((t * 2).sum().item())

        def step(i: int) -> Any:
            out = model(x)
            optimizer.zero_grad()
            out.square().sum().backward()
            optimizer.step()
            if how == "start":
                helper = threading.Thread(target=read, args=(out.detach(),))
                helper.start()
                helper.join()
            elif how == "queue":
                todo.put((read, out.detach()))
                todo.join()
            else:
                pool.submit(read, out.detach()).result()
            return out + 1

        return step, [model, seen]

    def work() -> None:
        while (task := todo.get()) is not None:
            task[0](task[1])
            todo.task_done()

    worker = threading.Thread(target=work)
    worker.start()
    compare(make, recorded=4, share=0.8)
    todo.put(None)
    worker.join()
    pool.shutdown()


def test_a_thread_that_takes_a_pending_tensor_gets_an_error() -> None:
    """Without any of the usual ways of handing over there is an error that names the remedy, never garbage."""
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    errors: list[str] = []

    def read(t: torch.Tensor, finished: Any) -> None:
        try:
            t.sum().item()
        except RuntimeError as error:
            errors.append(str(error))
        finished.release()

    def step(synced: bool) -> torch.Tensor:
        out = model(x).detach()
        if synced:
            markstep.sync()
        finished = _thread.allocate_lock()
        finished.acquire()
        _thread.start_new_thread(read, (out, finished))
        finished.acquire()
        return out + 1

    compiled = markstep.compile(step, **EXACT)
    for _ in range(4):
        compiled(False)
    assert errors and all("markstep.sync()" in e for e in errors)
    errors.clear()
    for _ in range(6):
        compiled(True)
    assert not errors


class Squares(torch.utils.data.Dataset[Any]):
    """Items are computed with torch in the worker."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> Any:
        return torch.full((6,), float(i)).square() / 100 + torch.rand(6), i % 3


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_with_workers_inside_the_step(workers: int) -> None:
    """Workers are forked while a step is under way."""

    def make() -> Any:
        model = nn.Linear(6, 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        loader = torch.utils.data.DataLoader(
            Squares(), batch_size=8, shuffle=True, num_workers=workers, persistent_workers=workers > 0
        )
        state: dict[str, Any] = {"iterator": iter([])}

        def step(i: int) -> Any:
            batch = next(state["iterator"], None)
            if batch is None:
                state["iterator"] = iter(loader)
                batch = next(state["iterator"])
            loss = F.cross_entropy(model(batch[0]), batch[1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return step, [model, optimizer]

    compare(make, steps=12, recorded=6, share=0.4)  # collating runs outside of programs


def test_backward_in_another_thread() -> None:
    """Hooks and custom functions of a graph run in the thread that calls backward."""

    def make() -> Any:
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(5, 6)

        def step(i: int) -> Any:
            loss = model(x).square().mean()
            optimizer.zero_grad()
            worker = threading.Thread(target=loss.backward)
            worker.start()
            worker.join()
            optimizer.step()
            return loss

        return step, [model, optimizer]

    compare(make, recorded=8, share=0.3)
