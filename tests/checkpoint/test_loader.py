"""A loader resumes at the batch, and in the order, of an undisturbed run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from markstep.checkpoint import ResumableLoader, random_state


class Numbers(Dataset[Any]):
    """Counts what is loaded; each sample may draw a random number."""

    def __init__(self, size: int = 23, augment: bool = False) -> None:
        self.size, self.augment, self.loaded = size, augment, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        self.loaded += 1
        return torch.tensor([float(index), float(torch.rand(())) if self.augment else 0.0])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.randperm(9))


def plain(**options: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(**options), batch_size=3, shuffle=True)


def generated(**options: Any) -> DataLoader[Any]:
    return DataLoader(
        Numbers(**options), batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(random.randrange(99))
    )


def distributed(**options: Any) -> DataLoader[Any]:
    data = Numbers(**options)
    return DataLoader(data, batch_size=2, sampler=DistributedSampler(data, 2, 1, seed=4))


def weighted(**options: Any) -> DataLoader[Any]:
    data = Numbers(**options)
    sampler = WeightedRandomSampler(torch.arange(1.0, 24.0), 20, generator=torch.Generator().manual_seed(random.randrange(99)))
    return DataLoader(data, batch_sampler=BatchSampler(sampler, 3, drop_last=True))


def unbatched(**options: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(**options), batch_size=None, shuffle=True)


def workers(**options: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(**options), batch_size=3, shuffle=True, num_workers=2)


def persistent(**options: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(**options), batch_size=3, shuffle=True, num_workers=1, persistent_workers=True)


def stream(**options: Any) -> DataLoader[Any]:
    return DataLoader(Stream(), batch_size=2)


MAKERS = [plain, generated, distributed, weighted, unbatched, workers, persistent, stream]


def train(loader: ResumableLoader, epochs: int, save_at: int | None = None) -> tuple[list[Any], Any]:
    """All batches with random numbers drawn between them; what a checkpoint at a batch would hold."""
    seen: list[Any] = []
    saved = None
    while loader.epoch < epochs:
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(loader.epoch)
        for batch in loader:
            seen.append((loader.epoch, batch.tolist(), float(torch.rand(())), random.random()))
            if len(seen) == save_at:
                saved = loader.state_dict(), random_state.capture()
        if save_at == 0:
            return seen, (loader.state_dict(), random_state.capture())
    return seen, saved


@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("make", MAKERS)
def test_resumes_where_it_was(make: Any, replay: bool) -> None:
    reference = make()
    length = 5 if make is stream else len(reference)
    for save_at in (1, length - 1, length, length + 2):
        random.seed(save_at), torch.manual_seed(save_at)
        seen, saved = train(ResumableLoader(make()), 3, save_at)
        random.seed(77), torch.manual_seed(77)
        resumed = ResumableLoader(make(), replay=replay)
        resumed.load_state_dict(saved[0])
        random_state.restore(saved[1])
        assert train(resumed, 3)[0] == seen[save_at:], save_at


@pytest.mark.parametrize("make", MAKERS)
def test_resumes_between_epochs(make: Any) -> None:
    random.seed(1), torch.manual_seed(1)
    loader = ResumableLoader(make())
    _, saved = train(loader, 2, save_at=0)
    wanted, _ = train(loader, 3)
    random.seed(77), torch.manual_seed(77)
    resumed = ResumableLoader(make())
    resumed.load_state_dict(saved[0])
    random_state.restore(saved[1])
    assert resumed.epoch == 1
    assert train(resumed, 3)[0] == wanted


def test_random_samples_go_on() -> None:
    """Without workers a sample's random numbers are those of an undisturbed run."""
    seen, saved = train(ResumableLoader(plain(augment=True)), 2, save_at=4)
    resumed = ResumableLoader(plain(augment=True))
    resumed.load_state_dict(saved[0])
    random_state.restore(saved[1])
    assert train(resumed, 2)[0] == seen[4:]


def test_random_samples_of_workers_go_on_with_replay() -> None:
    seen, saved = train(ResumableLoader(workers(augment=True)), 2, save_at=4)
    resumed = ResumableLoader(workers(augment=True), replay=True)
    resumed.load_state_dict(saved[0])
    random_state.restore(saved[1])
    assert train(resumed, 2)[0] == seen[4:]


def test_what_was_seen_is_not_loaded_again() -> None:
    _, saved = train(ResumableLoader(plain()), 1, save_at=6)
    loader = plain()
    resumed = ResumableLoader(loader)
    resumed.load_state_dict(saved[0])
    assert len(list(resumed)) == 2
    assert loader.dataset.loaded == 23 - 6 * 3  # type: ignore[attr-defined]
    assert loader.batch_sampler is not None and len(list(loader)) == 8, "the loader itself is what it was"


def test_iterating_is_that_of_the_loader() -> None:
    torch.manual_seed(3)
    wanted = [b.tolist() for b in plain()], torch.rand(1)
    torch.manual_seed(3)
    loader = ResumableLoader(plain())
    assert ([b.tolist() for b in loader], torch.rand(1)) == wanted
    assert len(loader) == 8 and loader.batch_size == 3 and loader.dataset.size == 23
    with pytest.raises(AttributeError):
        loader.nothing  # noqa: B018


def test_an_epoch_that_is_left_early() -> None:
    loader = ResumableLoader(plain())
    for _ in loader:
        break
    assert (loader.epoch, loader.batches) == (0, 1)
    resumed = ResumableLoader(plain())
    resumed.load_state_dict(loader.state_dict())
    assert len(list(resumed)) == 7 and resumed.epoch == 1
    assert len(list(loader)) == 8 and loader.epoch == 2


def test_another_number_of_processes_sees_the_same_samples() -> None:
    data = Numbers(24)

    def make(ranks: int, size: int) -> list[ResumableLoader]:
        samplers = [DistributedSampler(data, ranks, r, seed=4) for r in range(ranks)]
        return [ResumableLoader(DataLoader(data, batch_size=size, sampler=s)) for s in samplers]

    def samples(batches: list[torch.Tensor]) -> list[float]:
        return [float(v) for b in batches for v in b[:, 0]]

    before = make(2, 3)
    iterators = [iter(loader) for loader in before]
    seen = samples([next(i) for i in iterators for _ in range(2)])
    for ranks, size in ((1, 3), (4, 3), (3, 2), (2, 1)):
        after = make(ranks, size)
        for loader in after:
            loader.load_state_dict(before[0].state_dict())
        rest = samples([b for loader in after for b in loader])
        assert sorted(seen + rest) == list(range(24)), (ranks, size)
    (other,) = make(1, 5)
    with pytest.warns(UserWarning, match="2 samples are given out again: a step has 5 samples now, it had 6"):
        other.load_state_dict(before[0].state_dict())
    assert len(samples(list(other))) == 24 - 10


def test_lists_and_other_iterables() -> None:
    loader = ResumableLoader([1, 2, 3, 4])
    seen = iter(loader)
    next(seen), next(seen)
    resumed = ResumableLoader([1, 2, 3, 4])
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == [3, 4] and resumed.epoch == 1 and list(resumed) == [1, 2, 3, 4]
