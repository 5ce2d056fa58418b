"""Loaders that move batches to the device in the background, and end a step with every batch."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from markstep.xla import profiler, steps
from markstep.xla.queues import Queue
from markstep.xla.structures import send_cpu_data_to_device

CAUSE = "torch_xla.sync in parallel loader at step end"


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class PerDeviceLoader:
    """Iterates over the batches of one device. Ends the current step before each batch, and at the end."""

    def __init__(self, loader: ParallelLoader, device: torch.device) -> None:
        self._loader = loader
        self._device = device
        self._batches_yielded = 0

    def __iter__(self) -> PerDeviceLoader:
        return self

    def __len__(self) -> int:
        return self._loader.per_device_samples()

    def next(self) -> Any:
        """The next batch."""
        return self.__next__()

    def __next__(self) -> Any:
        if profiler.get_tracer_marked_step():  # a StepTrace has just ended the step
            profiler.set_tracer_marked_step(False)
            self._batches_yielded += 1
        elif self._batches_yielded >= self._loader.batches_per_execution - 1:
            steps.end_step(CAUSE)
            self._batches_yielded = 0
        else:
            self._batches_yielded += 1
        item = self._loader.next_item(self._device)
        if item is None:
            if not profiler.get_tracer_marked_step() and self._batches_yielded:
                steps.end_step(CAUSE)
            raise StopIteration
        return item


class PerDeviceQueue:
    """The queues of one device: batches that were read, and batches that were moved."""

    def __init__(self, device: Any, loader_prefetch_size: int, device_prefetch_size: int) -> None:
        self.device = device
        self.loader_queue = Queue(maxsize=loader_prefetch_size)
        self.queue = Queue(maxsize=device_prefetch_size)


class ParallelLoader:
    """Reads a loader in a thread, and moves its batches to the devices in others.

    Args:
        cpu_loader: gives batches: any nesting of containers with tensors on the CPU. Containers keep their types.
        devices: which devices get batches, in turn.
        batchdim: has no effect.
        batches_per_execution: how many batches make a step.
        loader_prefetch_size: batches that may wait to be moved.
        device_prefetch_size: moved batches that may wait.
        host_to_device_transfer_threads: threads for each device.
        input_sharding: must be None.
        loader: the name of `cpu_loader` in early releases.

    Raises:
        NotImplementedError: `input_sharding` is given.
        TypeError: no loader, two of them, or no devices.
    """

    def __init__(
        self,
        cpu_loader: Any = None,
        devices: Sequence[Any] = (),
        batchdim: int = 0,
        batches_per_execution: int = 1,
        loader_prefetch_size: int = 16,
        device_prefetch_size: int = 8,
        host_to_device_transfer_threads: int = 1,
        input_sharding: Any = None,
        loader: Any = None,
    ) -> None:
        if input_sharding is not None:
            raise NotImplementedError("input_sharding needs XLA itself: give each process its part with a DistributedSampler")
        if (cpu_loader is None) == (loader is None) or not devices:
            raise TypeError("a loader (cpu_loader, or loader as in early releases) and devices are needed")
        self._cpu_loader = cpu_loader if loader is None else loader
        self._devices = [torch.device(d) for d in devices]
        self._batches_per_execution = batches_per_execution
        self._done = False
        self._read = {d: Queue(loader_prefetch_size) for d in self._devices}
        self._ready = {d: _Ordered(device_prefetch_size) for d in self._devices}
        self._threads = [threading.Thread(target=self._reader, daemon=True, name="parallel loader: reads")]
        for d in self._devices:
            count = max(1, host_to_device_transfer_threads)
            self._ready[d].writers = count
            self._threads += [
                threading.Thread(target=self._mover, args=(d,), daemon=True, name=f"parallel loader: moves to {d}")
                for _ in range(count)
            ]
        for thread in self._threads:
            thread.start()

    @property
    def batches_per_execution(self) -> int:
        """How many batches make a step."""
        return self._batches_per_execution

    def per_device_loader(self, device: Any) -> PerDeviceLoader:
        """The loader of one device's batches."""
        return PerDeviceLoader(self, torch.device(device))

    def per_device_samples(self) -> int:
        """Number of batches of each device."""
        return len(self._cpu_loader) // len(self._devices)

    def next_item(self, device: Any) -> Any:
        """The next batch of a device, None at the end.

        Raises:
            Exception: what reading or moving the batch raised.
        """
        item = self._ready[torch.device(device)].get()
        if isinstance(item, _Failure):
            self.close()
            raise item.error
        return item

    def close(self) -> None:
        """Ends the threads; waiting batches are dropped."""
        self._done = True
        for queue in self._read.values():
            queue.close()
        for ready in self._ready.values():
            ready.close()

    def _reader(self) -> None:
        numbers = {d: itertools.count() for d in self._devices}
        turn = itertools.cycle(self._devices)
        try:
            for batch in self._cpu_loader:
                d = next(turn)
                if self._done or not self._read[d].put((next(numbers[d]), batch)):
                    return
        except BaseException as error:  # shown in the thread that asks for the batch
            for d in self._devices:
                self._read[d].put((next(numbers[d]), _Failure(error)))
        for queue in self._read.values():
            queue.close_write()

    def _mover(self, device: torch.device) -> None:
        read, ready = self._read[device], self._ready[device]
        while (numbered := read.get()) is not None:
            number, batch = numbered
            if not isinstance(batch, _Failure):
                try:
                    with torch.no_grad():
                        batch = self.send_cpu_data_to_device([batch], device)[0]
                except BaseException as error:
                    batch = _Failure(error)
            if not ready.put(number, batch):
                return
        ready.writer_ends()

    def send_cpu_data_to_device(self, batches: list[Any], device: Any) -> list[Any]:
        """Moves a list of batches."""
        moved: list[Any] = send_cpu_data_to_device(batches, device)
        return moved


class _Ordered:
    """Numbered items that several threads put, taken in the order of their numbers."""

    def __init__(self, room: int) -> None:
        self.room, self.writers, self.next, self.closed = room, 1, 0, False
        self.items: dict[int, Any] = {}
        self.changed = threading.Condition()

    def put(self, number: int, item: Any) -> bool:
        with self.changed:
            self.changed.wait_for(lambda: self.closed or number < self.next + self.room)
            self.items[number] = item
            self.changed.notify_all()
            return not self.closed

    def writer_ends(self) -> None:
        with self.changed:
            self.writers -= 1
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def get(self) -> Any:
        with self.changed:
            self.changed.wait_for(lambda: self.closed or self.writers == 0 or self.next in self.items)
            if self.next not in self.items:
                return None
            item = self.items.pop(self.next)
            self.next += 1
            self.changed.notify_all()
            return item


class MpDeviceLoader:
    """Wraps a loader so that its batches are on the device, and every batch ends the step before it.

    Args:
        loader: gives batches on the CPU.
        device: where they go.
        **kwargs: see `ParallelLoader`.
    """

    def __init__(self, loader: Iterable[Any], device: Any, **kwargs: Any) -> None:
        self._loader = loader
        self._device = device
        self._parallel_loader_kwargs = kwargs
        self._parallel_loader: ParallelLoader | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._parallel_loader is not None:
            self._parallel_loader.close()
        self._parallel_loader = ParallelLoader(self._loader, [self._device], **self._parallel_loader_kwargs)
        return self._parallel_loader.per_device_loader(self._device)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        """What else the loader has, such as `dataset` and `sampler`, which Accelerate asks for."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._loader, name)
