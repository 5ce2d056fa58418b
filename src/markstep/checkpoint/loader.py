"""A loader that goes on in the middle of an epoch, with the batches that would have come."""

from __future__ import annotations

import copy
import itertools
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from torch import Generator
from torch.utils.data import DataLoader, IterableDataset

from markstep.checkpoint import random_state

_END = object()


class ResumableLoader:
    """Wraps a loader so that a checkpoint holds its position.

    Batches come in the order in which an undisturbed run would have had them. A `DataLoader` skips those that were seen in
    its sampler, without loading them; other loaders load and drop them. Attributes that are not here are the loader's.

    The random numbers that worker processes draw (`num_workers` > 0, for example to augment images) go on as in an
    undisturbed run only with `replay=True`.

    Args:
        loader: a `DataLoader`, or anything that can be iterated several times. Wrap what the training loop iterates over:
            a loader that reads ahead (`MpDeviceLoader`) belongs inside.
        replay: load the batches that were seen and drop them.

    Attributes:
        loader: what is wrapped.
        epoch: number of the epoch that is under way, or else of the next, from 0.
        batches: how many batches of it were given out.
    """

    def __init__(self, loader: Any, *, replay: bool = False) -> None:
        self.loader = loader
        self.epoch = 0
        self.batches = 0
        self._replay = replay
        self._begun = False
        self._resume = False
        self._start: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Any]:
        if self._resume and self._begun:
            return self._counted(self._rest())
        self.epoch += self._begun  # the loop before has left it early
        self._start = _start(self.loader)
        self.batches, self._begun = 0, True
        if self._resume:
            return self._counted(self._as_if_warm())
        return self._counted(iter(self.loader))

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self.batches += 1
            yield batch
        self.epoch += 1
        self.batches, self._begun = 0, False

    def _rest(self) -> Iterator[Any]:
        """What is left of the epoch; the generators are where they were."""
        self._resume = False
        now = random_state.capture(devices=False)
        skip = 0 if self._replay else self.batches
        tail = _Tail.of(self.loader, skip) if self._start["warm"] or not self._replay else None
        try:
            if tail is None:
                skip = 0
                _restart(self.loader, self._start)
            batches = iter(self.loader) if tail is None else tail.begin(self._start)
            for _ in range(self.batches - skip):
                next(batches, None)
            return batches
        finally:
            random_state.restore(now)

    def _as_if_warm(self) -> Iterator[Any]:
        """A new epoch. The loader draws a number when it starts its workers; an undisturbed run has done so long ago."""
        self._resume = False
        self._start["warm"] = True
        tail = _Tail.of(self.loader, 0)
        return iter(self.loader) if tail is None else tail.begin(self._start, stay=True)

    def state_dict(self) -> dict[str, Any]:
        """The position, in types that `torch.load(weights_only=True)` reads."""
        return {
            "epoch": self.epoch,
            "batches": self.batches,
            "begun": self._begun,
            "start": self._start if self._begun else _start(self.loader),
            "samples": self._samples(),
        }

    def _samples(self) -> int | None:
        """How many samples all processes together have with one batch of each; None if that is not known."""
        size = getattr(self.loader, "batch_size", None)
        replicas = [n for one in _pieces(self.loader) if isinstance(n := getattr(one, "num_replicas", None), int)]
        return size * (replicas[0] if replicas else 1) if isinstance(size, int) else None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a position: the next iteration gives what is left of its epoch.

        With another batch size or number of processes, as many batches are skipped as hold the samples that were seen. Those
        are the same ones if a `DistributedSampler` shares them out.
        """
        batches, before, now = state["batches"], state["samples"], self._samples()
        if before is not None and now is not None and before != now:
            batches, again = divmod(batches * before, now)
            if again:
                warnings.warn(f"{again} samples are given out again: a step has {now} samples now, it had {before}", stacklevel=2)
        self.epoch, self.batches = state["epoch"], batches
        self._begun, self._start = state["begun"], state["start"]
        self._resume = self._begun or self._start["warm"]
        if not self._begun:
            _restart(self.loader, self._start, everything=False)


def _pieces(loader: Any) -> list[Any]:
    """The loader and its samplers, which may have a generator, an epoch or a number of replicas."""
    found = [loader]
    for one in found:
        found += [p for name in ("batch_sampler", "sampler") if (p := getattr(one, name, None)) is not None and p not in found]
    return found


def _generators(loader: Any) -> list[Generator]:
    found = {id(g): g for one in _pieces(loader) if isinstance(g := getattr(one, "generator", None), Generator)}
    return list(found.values())


def _epochs(loader: Any) -> list[Any]:
    return [one for one in _pieces(loader) if hasattr(one, "set_epoch") and isinstance(getattr(one, "epoch", None), int)]


def _start(loader: Any) -> dict[str, Any]:
    """All that decides about the order of an epoch that begins now."""
    return {
        "rng": random_state.capture(devices=False),
        "generators": [g.get_state() for g in _generators(loader)],
        "epochs": [one.epoch for one in _epochs(loader)],
        "warm": getattr(_data_loader(loader), "_iterator", None) is not None,  # persistent workers run already
    }


def _restart(loader: Any, start: dict[str, Any], *, everything: bool = True) -> None:
    """Puts everything where it was when an epoch began; without `everything` only what belongs to the loader."""
    if everything:
        random_state.restore(start["rng"])
    for generator, state in zip(_generators(loader), start["generators"], strict=False):
        generator.set_state(state)
    for one, epoch in zip(_epochs(loader), start["epochs"], strict=False):
        one.set_epoch(epoch)


def _data_loader(loader: Any) -> DataLoader[Any] | None:
    """The DataLoader that gives the batches, directly or through a loader that moves them to a device."""
    device_loader = getattr(sys.modules.get("markstep.xla.loader"), "MpDeviceLoader", None)
    while device_loader is not None and isinstance(loader, device_loader):
        loader = loader._loader
    return loader if isinstance(loader, DataLoader) else None


class _Tail:
    """Takes the place of a sampler, and gives what is left of it after some batches."""

    def __init__(self, loader: DataLoader[Any], outer: Any, skip: int) -> None:
        place = "sampler" if loader.batch_sampler is None else "batch_sampler"
        self._original = loader
        self._sampler = getattr(loader, place)
        self._skip = skip
        self._started = False
        self._at: dict[str, Any] | None = None
        self._stay = False
        self._copy = copy.copy(loader)
        self._copy.__dict__.update({place: self, "_iterator": None})  # DataLoader allows no assignment
        self._outer = self._copy if outer is loader else copy.copy(outer)
        if outer is not loader:
            self._outer._loader = self._copy

    @classmethod
    def of(cls, loader: Any, skip: int) -> _Tail | None:
        """A tail of what a loader iterates over; None if it has no sampler that could be asked for less."""
        inner = _data_loader(loader)
        return None if inner is None or isinstance(inner.dataset, IterableDataset) else cls(inner, loader, skip)

    def begin(self, start: dict[str, Any], *, stay: bool = False) -> Iterator[Any]:
        """Iterates over the loader, with batches in the order of an epoch that began at `start`.

        Args:
            start: what `_start` has found.
            stay: leave the generators where the sampler leaves them, instead of where they are now.
        """
        self._stay = stay
        if start["warm"]:
            self._at = start  # starting workers draws a number that must not count
        else:
            _restart(self._original, start)
        batches = iter(self._outer)
        if self._outer is not self._copy:  # threads read ahead: with the first batch they have asked the sampler
            batches = itertools.chain([first] if (first := next(batches, _END)) is not _END else [], batches)
        if self._original.persistent_workers:
            self._original.__dict__["_iterator"] = self._copy._iterator
        if not self._started:  # it will be asked with the first batch, by which time the generators are elsewhere
            self._at = _start(self._original)
        return batches

    def __len__(self) -> int:
        return max(0, len(self._sampler) - self._skip)

    def __iter__(self) -> Iterator[Any]:
        at, self._at = self._at, None
        skip, self._skip = self._skip, 0  # persistent workers come back for the epochs after this one
        self._started = True
        now = None if at is None else random_state.capture(devices=False)
        if at is not None:
            _restart(self._original, at)
        ahead = []
        try:
            rest = iter(self._sampler)
            for _ in range(skip):
                next(rest, None)
            if at is not None and at["warm"]:
                ahead = [one for one in [next(rest, _END)] if one is not _END]
        finally:
            if now is not None and not self._stay:
                random_state.restore(now)
        yield from ahead
        yield from rest
