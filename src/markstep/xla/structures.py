"""Nested containers of tensors: walking through them, moving what they hold between devices."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from markstep.xla import device, metrics


class DataWrapper(ABC):
    """A batch of a type of its own: what its tensors are, and how to build it from moved ones."""

    @abstractmethod
    def get_tensors(self) -> list[Any]:
        """What is to be moved."""

    @abstractmethod
    def from_tensors(self, tensors: list[Any]) -> Any:
        """The batch with the moved tensors, in the order of `get_tensors`."""


def for_each_instance(value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], object]) -> None:
    """Calls `fn` once on every object inside `value` that `select_fn` chooses, however often it is there."""
    _visit(value, select_fn, fn, {})


def _visit(value: Any, select: Callable[[Any], bool], fn: Callable[[Any], object], seen: dict[int, Any]) -> None:
    if id(value) in seen:
        return
    seen[id(value)] = value  # kept alive: its id belongs to no other object
    if select(value):
        fn(value)
        return
    if isinstance(value, dict):
        for key, item in value.items():
            _visit(key, select, fn, seen)
            _visit(item, select, fn, seen)
    elif isinstance(value, list | tuple | set):
        for item in value:
            _visit(item, select, fn, seen)
    elif isinstance(value, DataWrapper):
        for item in value.get_tensors():
            _visit(item, select, fn, seen)
    elif not isinstance(value, torch.Tensor) and hasattr(value, "__dict__") and not isinstance(value, type):
        for item in list(vars(value).values()):
            _visit(item, select, fn, seen)


def for_each_instance_rewrite(value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], Any]) -> Any:
    """`value` with everything that `select_fn` chooses replaced by `fn` of it.

    Containers are rebuilt and keep their types; other objects are changed in place. `fn` is called once for each object,
    however often it is there.
    """
    return _Rewrite(select_fn, fn).of(value)


class _Rewrite:
    def __init__(self, select: Callable[[Any], bool], fn: Callable[[Any], Any]) -> None:
        self.select, self.fn = select, fn
        self.done: dict[int, tuple[Any, Any]] = {}  # id -> (the value, kept alive, and its replacement)

    def of(self, value: Any) -> Any:
        if id(value) in self.done:
            return self.done[id(value)][1]
        self.done[id(value)] = (value, value)  # for cycles
        result = self.fn(value) if self.select(value) else self._rebuild(value)
        self.done[id(value)] = (value, result)
        return result

    def _rebuild(self, value: Any) -> Any:
        if isinstance(value, dict):
            pairs = [(self.of(k), self.of(v)) for k, v in value.items()]
            return self._mapping(value, pairs)
        if isinstance(value, tuple):
            items = [self.of(v) for v in value]
            return type(value)(*items) if hasattr(value, "_fields") else _same_type(value, tuple(items))
        if isinstance(value, list | set):
            return _same_type(value, [self.of(v) for v in value])
        if isinstance(value, DataWrapper):
            return value.from_tensors([self.of(t) for t in value.get_tensors()])
        if not isinstance(value, torch.Tensor | torch.nn.Module | type) and hasattr(value, "__dict__"):
            for name, item in list(vars(value).items()):
                new = self.of(item)
                if new is not item:
                    setattr(value, name, new)
        return value

    @staticmethod
    def _mapping(value: dict[Any, Any], pairs: list[tuple[Any, Any]]) -> Any:
        if type(value) is dict:
            return dict(pairs)
        new = value.copy()
        if type(new) is not type(value):
            return dict(pairs)
        new.clear()
        new.update(pairs)
        return new


def _same_type(value: Any, items: Any) -> Any:
    if type(value) in (list, tuple, set):
        return type(value)(items)
    try:
        return type(value)(items)
    except TypeError:
        return items


class ToXlaTensorArena:
    """Replaces all selected tensors of a nested structure by one call of `convert_fn` on the list of them.

    Args:
        convert_fn: from a list of tensors to the list of their replacements, in the same order.
        select_fn: which values are replaced.
    """

    def __init__(self, convert_fn: Callable[[list[torch.Tensor]], list[torch.Tensor]], select_fn: Callable[[Any], bool]) -> None:
        self._convert_fn, self._select_fn = convert_fn, select_fn

    def transform(self, inputs: Any) -> Any:
        """`inputs` with the selected tensors replaced. Container types are kept; a tensor met twice is one result."""
        found: dict[int, torch.Tensor] = {}
        for_each_instance(inputs, self._select_fn, lambda t: found.setdefault(id(t), t))
        tensors = list(found.values())
        converted = dict(zip(found, self._convert_fn(tensors) if tensors else [], strict=True))
        return for_each_instance_rewrite(inputs, self._select_fn, lambda t: converted[id(t)])


def is_xla_tensor(tensor: Any) -> bool:
    """Whether a value is a tensor of the xla device."""
    return isinstance(tensor, torch.Tensor) and tensor.device.type == "xla"


def upload(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of CPU tensors on the xla device; usable in any thread."""
    start = time.perf_counter_ns()
    target = device.real_device()
    results = []
    for t in tensors:
        moved = t.detach().to(target, copy=True, memory_format=torch.contiguous_format)
        results.append(device.from_real(moved).requires_grad_(t.requires_grad))
    metrics.observe_transfer("TransferToDeviceTime", start, sum(t.numel() * t.element_size() for t in tensors))
    return results


def to_cpu(data: Any, convert: bool = True) -> Any:
    """`data` with xla tensors replaced by copies on the CPU; without `convert` only their values are computed.

    Tensors that share memory share memory in the result too, so ties survive `torch.save` and are stored once.
    """
    if not convert:
        device.flush("torch_xla.core.xla_model.save")
        return data
    start = time.perf_counter_ns()
    storages: dict[tuple[int, int], torch.UntypedStorage] = {}
    result = for_each_instance_rewrite(data, is_xla_tensor, lambda t: _download(t, storages))
    metrics.observe_transfer("TransferFromDeviceTime", start, sum(s.nbytes() for s in storages.values()))
    return result


def _download(t: torch.Tensor, storages: dict[tuple[int, int], torch.UntypedStorage]) -> torch.Tensor:
    real = device.to_real(t.detach())
    storage = real.untyped_storage()
    if storage.nbytes() > 2 * real.numel() * real.element_size() + 4096 and real.is_contiguous():
        copy = real.to("cpu", copy=True)  # a small piece of something large, such as a batch of a data set
    else:
        key = (storage.data_ptr(), storage.nbytes())
        if key not in storages:
            whole = torch.empty(0, dtype=torch.uint8, device=real.device).set_(storage)
            storages[key] = whole.to("cpu", copy=True).untyped_storage()
        copy = torch.empty(0, dtype=real.dtype).set_(storages[key], real.storage_offset(), real.size(), real.stride())
        if real.is_conj():
            copy = copy.conj()
        if real.is_neg():
            copy = torch._neg_view(copy)
    if isinstance(t, torch.nn.Parameter):
        return torch.nn.Parameter(copy, t.requires_grad)
    return copy.requires_grad_(t.requires_grad)


def send_cpu_data_to_device(datas: Any, device: str | torch.device, input_sharding: Any = None) -> Any:
    """Copies of nested data whose CPU tensors lie on the xla device; container types are kept.

    A list of batches gives a list of batches, and a tensor a list with the one tensor. `DataWrapper` objects are unpacked.

    Raises:
        NotImplementedError: `input_sharding` is given.
    """
    if input_sharding is not None:
        raise NotImplementedError("input_sharding needs XLA itself: give each process its part with a DistributedSampler")
    return ToXlaTensorArena(upload, _on_cpu).transform([datas] if isinstance(datas, torch.Tensor) else datas)


def _on_cpu(value: Any) -> bool:
    return type(value) is torch.Tensor and value.device.type == "cpu"
