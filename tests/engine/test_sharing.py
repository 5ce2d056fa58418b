"""Training and the compiler share the processors; memory of eager steps goes back to the system."""

import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import markstep
from markstep.engine import heap, region, sharing
from markstep.record import native


class Clock:
    """In place of the `time` module: `used` cores work during a step."""

    def __init__(self, used: float) -> None:
        self.wall, self.cpu, self.slept, self.used = 0.0, 0.0, 0.0, used

    def perf_counter(self) -> float:
        return self.wall

    def process_time(self) -> float:
        return self.cpu

    def sleep(self, seconds: float) -> None:
        self.wall += seconds
        self.slept += seconds

    def work(self, seconds: float) -> None:
        self.wall += seconds
        self.cpu += self.used * seconds


def slept(monkeypatch: pytest.MonkeyPatch, cores: int, used: float, step_s: float, steps: int) -> float:
    """Seconds that training pauses in so many steps."""
    clock = Clock(used)
    monkeypatch.setattr(sharing, "time", clock)
    monkeypatch.setattr(sharing, "_cores", lambda: cores)
    share = sharing.Sharing()
    for _ in range(steps):
        clock.work(step_s)
        share.after_step(step_s)
    return clock.slept


@pytest.mark.parametrize("step_s", [0.001, 0.1, 2.0])
def test_training_that_uses_every_core_pauses_for_a_fixed_share(monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    steps = int(100 / step_s)
    assert slept(monkeypatch, 2, 2.0, step_s, steps) == pytest.approx(15, rel=0.02)


def test_training_that_leaves_a_core_never_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slept(monkeypatch, 8, 7.0, 0.1, 1000) == 0
    assert slept(monkeypatch, 2, 0.5, 0.1, 1000) == 0


def test_half_a_free_core_halves_the_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slept(monkeypatch, 4, 3.5, 0.1, 1000) == pytest.approx(7.5, rel=0.02)


def test_training_pauses_for_the_build_of_the_native_part_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built = threading.Event()
    clock = Clock(2.0)
    monkeypatch.setattr(sharing, "time", clock)
    monkeypatch.setattr(sharing, "_cores", lambda: 2)
    monkeypatch.setattr(region, "clock", clock.perf_counter)
    monkeypatch.setattr(region, "_waiting", sharing.Sharing(0.5))
    monkeypatch.setattr(region, "_broken", None)
    monkeypatch.setattr(native, "is_built", lambda cache: False)
    monkeypatch.setattr(native, "load", lambda cache: built.wait())
    step = markstep.compile(clock.work, cache_dir=tmp_path)
    before = markstep.explain().eager_steps
    for _ in range(100):
        step(0.1)
    built.set()
    assert clock.slept == pytest.approx(5, rel=0.1)
    assert markstep.explain().eager_steps == before + 100


def resident() -> int:
    """MiB in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20


def test_trim_gives_memory_back() -> None:
    if heap._malloc_trim() is None:
        pytest.skip("no malloc_trim: not the GNU C library")
    pieces = [torch.ones(15_000) for _ in range(4000)]  # 60 kB each: too small to be mapped one by one
    full = resident()
    del pieces[:-1]  # the last one keeps the top of the heap
    heap.trim()
    assert resident() < full - 150, (full, resident())
    assert pieces[-1].sum() == 15_000


def test_explain_names_the_numbers_that_became_inputs() -> None:
    model = nn.Linear(4, 4)
    rates = iter(range(1, 20))

    def step(x: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            model.weight.add_(model.weight.grad, alpha=-0.01 * next(rates))
        return loss.detach()

    wrapped = markstep.compile(step, backend="interpreter")
    for _ in range(8):
        wrapped(torch.randn(3, 4))
    program = next(p for p in markstep.explain().programs if p.runs or p.interpreted)
    (what, where), count = next(iter(program.numbers.items()))
    assert what == "add_(alpha=)" and "test_sharing.py:" in where and count == 1 == program.scalar_inputs
    assert f"1 x add_(alpha=) at {where} changes and is an input" in str(markstep.explain())
