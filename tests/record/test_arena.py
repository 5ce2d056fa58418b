"""The memory of CPU tensors: handed out correctly, joined again when freed, the same in every step."""

import io
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from markstep.engine import heap
from markstep.engine.options import resolve
from markstep.record import native

MIB = 1 << 20


@pytest.fixture
def arena() -> Iterator[Any]:
    module = native.load(resolve({}).prepared_cache_dir())
    assert module.arena(True)
    yield module
    module.arena(True)


def mebibytes(n: float) -> Tensor:
    return torch.empty(int(n * MIB), dtype=torch.uint8)


def span(tensor: Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    return start, start + tensor.untyped_storage().nbytes()


def test_blocks_do_not_overlap_and_keep_what_is_in_them(arena: Any) -> None:
    choose = random.Random(0)
    held: list[tuple[Tensor, int]] = []
    for number in range(2000):
        if held and (len(held) > 40 or choose.random() < 0.45):
            tensor, mark = held.pop(choose.randrange(len(held)))
            assert bool((tensor == mark).all())
        else:
            size = choose.choice([0, 1, 70_000, 200_000, MIB - 1, MIB, 3 * MIB]) + choose.randrange(5000)
            held.append((torch.full((size,), number % 251, dtype=torch.uint8), number % 251))
            assert held[-1][0].data_ptr() % 64 == 0
    spans = sorted(span(t) for t, _ in held)
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
    assert all(bool((t == mark).all()) for t, mark in held)


def test_free_neighbours_are_joined(arena: Any) -> None:
    parts = [mebibytes(200) for _ in range(3)]
    start, end = min(p.data_ptr() for p in parts), max(span(p)[1] for p in parts)
    used, extent = arena.arena_bytes()
    del parts[1], parts[0], parts[0]
    assert arena.arena_bytes() == (used - 600 * MIB, extent)
    whole = mebibytes(600)
    assert (whole.data_ptr(), span(whole)[1]) == (start, end)
    assert arena.arena_bytes() == (used, extent)


def test_the_last_block_grows(arena: Any) -> None:
    last = mebibytes(700)
    extent = arena.arena_bytes()[1]
    del last
    larger = mebibytes(800)
    assert arena.arena_bytes()[1] == extent + 100 * MIB
    del larger


def test_a_steady_loop_needs_no_more_memory(arena: Any) -> None:
    model = nn.Sequential(nn.Linear(700, 900), nn.GELU(), nn.Linear(900, 700))
    optimizer = torch.optim.AdamW(model.parameters())
    extents = []
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = model(torch.randn(600, 700)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        extents.append(arena.arena_bytes()[1])
    assert len(set(extents[3:])) == 1


def test_tensors_from_before_and_after(arena: Any) -> None:
    inside = mebibytes(2)
    inside.fill_(7)
    used = arena.arena_bytes()[0]
    arena.arena(False)
    outside = mebibytes(2)
    assert arena.arena_bytes()[0] == used
    inside_clone = inside.clone()
    del inside
    assert arena.arena_bytes()[0] == used - 2 * MIB
    arena.arena(True)
    del outside  # came from PyTorch's own allocator
    assert bool((inside_clone == 7).all())


def test_what_torch_does_with_storages(arena: Any) -> None:
    tensor = torch.arange(300_000)
    tensor.untyped_storage().resize_(4_000_000)
    assert tensor[299_999] == 299_999
    array = torch.arange(200_000).numpy()  # keeps the block alive
    assert array[-1] == 199_999
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    assert torch.equal(torch.load(file), tensor)
    shared = torch.arange(100_000).share_memory_()
    assert shared.is_shared() and shared[-1] == 99_999
    lazy = torch._lazy_clone(tensor)  # copied when it is written to
    lazy[0] = -1
    assert tensor[0] == 0 and lazy[0] == -1


def test_trimmed_memory_goes_back(arena: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    monkeypatch.setattr(heap, "_arena", arena)
    block, kept = torch.ones(400 * MIB, dtype=torch.uint8), torch.ones(2 * MIB, dtype=torch.uint8)
    full = resident()
    del block
    assert resident() > full - 100 * MIB
    heap.trim()
    assert resident() < full - 350 * MIB
    assert bool((kept == 1).all())
    again = torch.zeros(400 * MIB, dtype=torch.uint8)
    assert not bool(again.any())


def test_all_threads_at_once(arena: Any) -> None:
    wrong: list[int] = []

    def work(mark: int) -> None:
        choose = random.Random(mark)
        held: list[Tensor] = []
        for _ in range(400):
            held.append(torch.full((choose.randrange(60_000, 2 * MIB),), mark, dtype=torch.uint8))
            if len(held) > 5 and not bool((held.pop(choose.randrange(5)) == mark).all()):
                wrong.append(mark)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_a_forked_process_can_go_on(arena: Any) -> None:
    """While another thread allocates, so perhaps inside the allocator."""
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            mebibytes(0.1)

    worker = threading.Thread(target=churn)
    worker.start()
    mine = torch.full((3 * MIB,), 5, dtype=torch.uint8)
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                theirs = mebibytes(3).data_ptr()
                os._exit(0 if theirs and mine.numpy()[-1] == 5 else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        worker.join()


def test_too_much_is_an_error_as_without_it(arena: Any) -> None:
    before = arena.arena_bytes()
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        torch.empty(1 << 46, dtype=torch.uint8)
    assert arena.arena_bytes() == before


def test_the_profiler_sees_the_memory(arena: Any) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        mebibytes(5)
    assert sum(e.self_cpu_memory_usage for e in profiler.key_averages()) == 0
    assert max(e.self_cpu_memory_usage for e in profiler.key_averages()) == 5 * MIB


@pytest.mark.parametrize("value", ["0", "1"])
def test_the_switch(value: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, markstep\n"
        "from markstep.record import native\n"
        "from markstep.engine import region\n"
        "step = markstep.compile(lambda: torch.ones(10_000_000).sum().item(), backend='interpreter')\n"
        "for _ in range(4): step()\n"
        "print(native._module.arena_bytes()[1] > 0)\n"
    )
    environment = {**os.environ, "MARKSTEP_ARENA": value}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == (str(value == "1"), 0), done.stderr
