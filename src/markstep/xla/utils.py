"""Small helpers of `torch_xla.utils.utils`: sample data, timing, temporary folders."""

from __future__ import annotations

import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import torch


class Cleaner:
    """Calls a function when it is deleted."""

    def __init__(self, func: Callable[[], object]) -> None:
        self.func = func

    def __del__(self) -> None:
        self.func()


class LazyProperty:
    """A value that is computed at first use."""

    def __init__(self, gen_fn: Callable[[], Any]) -> None:
        self._gen_fn = gen_fn

    @property
    def value(self) -> Any:
        """The value."""
        if self._gen_fn is not None:
            self._value, self._gen_fn = self._gen_fn(), None  # type: ignore[assignment]
        return self._value


class TmpFolder:
    """A temporary folder that goes with the object.

    Attributes:
        name: its path.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.name = self._folder.name


class SampleGenerator:
    """An iterator that gives the same data `sample_count` times; iterating again starts anew."""

    def __init__(self, data: Any, sample_count: int) -> None:
        self._data, self._sample_count, self._count = data, sample_count, 0

    def __iter__(self) -> SampleGenerator:
        return SampleGenerator(self._data, self._sample_count)

    def __len__(self) -> int:
        return self._sample_count

    def next(self) -> Any:
        """The data."""
        return self.__next__()

    def __next__(self) -> Any:
        if self._count >= self._sample_count:
            raise StopIteration
        self._count += 1
        return self._data


class FnDataGenerator:
    """Gives `count` pairs (x, func(x)), where x is made by gen_tensor(batch_size, *dims)."""

    def __init__(
        self,
        func: Callable[[Any], Any],
        batch_size: int,
        gen_tensor: Callable[..., Any],
        dims: Sequence[int] | None = None,
        count: int = 1,
    ) -> None:
        self._func, self._gen_tensor = func, gen_tensor
        self._shape = [batch_size, *(dims or [])]
        self._count, self._emitted = count, 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> FnDataGenerator:
        return self

    def next(self) -> Any:
        """The next pair."""
        return self.__next__()

    def __next__(self) -> Any:
        if self._emitted >= self._count:
            raise StopIteration
        self._emitted += 1
        x = self._gen_tensor(*self._shape)
        return x, self._func(x)


def as_list(t: Any) -> Any:
    """A tuple or list as it is, anything else as a tuple of one."""
    return t if isinstance(t, tuple | list) else (t,)


def shape(inputs: Any) -> list[int]:
    """Lengths of nested sequences, from outside to inside."""
    found = []
    while isinstance(inputs, list | tuple):
        found.append(len(inputs))
        inputs = inputs[0] if inputs else None
    return found


def flatten_nested_tuple(inputs: Any) -> tuple[Any, ...]:
    """All values of nested tuples and lists in order."""
    flat: list[Any] = []
    for item in inputs:
        flat.extend(flatten_nested_tuple(item) if isinstance(item, tuple | list) else (item,))
    return tuple(flat)


def list_copy_append(ilist: Iterable[Any], item: Any) -> list[Any]:
    """A new list with one item more."""
    return [*ilist, item]


def null_print(*args: Any, **kwargs: Any) -> None:
    """Prints nothing."""


def eprint(*args: Any, **kwargs: Any) -> None:
    """Prints to stderr."""
    print(*args, file=sys.stderr, **kwargs)


def get_print_fn(debug: bool | None = None) -> Callable[..., None]:
    """`eprint` or, without `debug` (by default: DEBUG is set), `null_print`."""
    from markstep.xla import env

    return eprint if (env.flag("DEBUG") if debug is None else debug) else null_print


def timed(fn: Callable[[], Any], msg: str = "", printfn: Callable[..., Any] | None = eprint) -> Any:
    """The result of `fn`; prints how long it took."""
    with TimedScope(msg, printfn):
        return fn()


class TimedScope:
    """A `with` block that prints how long it took."""

    def __init__(self, msg: str = "", printfn: Callable[..., Any] | None = eprint) -> None:
        self._msg, self._printfn = msg, printfn
        self._error: Any = None

    def __enter__(self) -> TimedScope:
        self._start = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._printfn is not None:
            failed = f" (failed: {self._error or error})" if self._error or error else ""
            self._printfn(f"{self._msg}{1000 * (time.perf_counter() - self._start):.3f} ms{failed}")

    def set_error(self, error: Any) -> None:
        """Notes an error that the block has handled."""
        self._error = error


def get_free_tcp_ports(n: int = 1) -> list[int]:
    """Ports that are free now; others may take them before you do."""
    sockets = [socket.socket() for _ in range(n)]
    try:
        for s in sockets:
            s.bind(("", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


def parallel_work(num_workers: int, fn: Callable[..., Any], *args: Any) -> Any:
    """`map(fn, *args)` in threads; the results come in order."""
    with ThreadPoolExecutor(max_workers=num_workers) as pool:
        return pool.map(fn, *args)


class CachedDataset(torch.utils.data.Dataset[Any]):
    """A dataset whose samples are kept in files once they were made.

    Args:
        data_set: the dataset.
        path: folder of the files.
        max_files_per_folder: files in each of its folders.
        compress: has no effect.
    """

    def __init__(self, data_set: Any, path: str, max_files_per_folder: int = 1000, compress: bool = True) -> None:
        from pathlib import Path

        self._data_set, self._path, self._per_folder = data_set, Path(path), max_files_per_folder

    def __len__(self) -> int:
        return len(self._data_set)

    def __getitem__(self, index: int) -> Any:
        path = self._path / str(index // self._per_folder) / f"{index % self._per_folder}.pt"
        if path.exists():
            return torch.load(path, weights_only=False)
        sample = self._data_set[index]
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{id(self)}")
        torch.save(sample, unfinished)
        unfinished.replace(path)
        return sample

    def warmup(self) -> None:
        """Makes all samples."""
        for i in range(len(self)):
            self[i]
