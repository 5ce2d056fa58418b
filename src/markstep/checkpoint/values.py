"""Values on their way into files: on the CPU, and only of types that `torch.load(weights_only=True)` reads."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import torch

_ADVICE = "tensors, numbers, strings and lists, tuples and dictionaries of them"


def map_tensors(value: Any, fn: Callable[[torch.Tensor], Any]) -> Any:
    """`value` with `fn` of every tensor in its dictionaries, lists and tuples; containers keep their types."""
    if isinstance(value, torch.Tensor):
        return fn(value)
    if isinstance(value, dict):
        result = value.copy()  # an OrderedDict keeps its type
        result.update((k, map_tensors(v, fn)) for k, v in value.items())
        if hasattr(value, "_metadata"):  # versions of modules, which nn.Module.state_dict attaches
            result._metadata = value._metadata  # type: ignore[attr-defined]
        return result
    if type(value) in (list, tuple):
        return type(value)(map_tensors(v, fn) for v in value)
    return value


def tensors_of(value: Any) -> list[torch.Tensor]:
    """All tensors in nested dictionaries, lists and tuples."""
    found: list[torch.Tensor] = []
    map_tensors(value, found.append)
    return found


def on_cpu(value: Any, *, only: str | None = None) -> Any:
    """`value` with tensors of devices copied to the CPU. Tensors that are the same memory, such as tied weights, stay so.

    Args:
        value: nested dictionaries, lists and tuples.
        only: copy only those of this type of device.
    """
    moved = [t for t in tensors_of(value) if (t.device.type != "cpu" if only is None else t.device.type == only)]
    if not moved:
        return value
    copies = {id(t): copy for t, copy in zip(moved, _copies(moved), strict=True)}
    return map_tensors(value, lambda t: copies.get(id(t), t))


def _copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    if any(t.device.type == "xla" for t in tensors):
        from markstep.xla.structures import to_cpu

        tensors = to_cpu([t.detach() for t in tensors])
    made: dict[Any, torch.Tensor] = {}
    return [t if t.device.type == "cpu" else made.setdefault(_memory(t), t.detach().cpu()) for t in tensors]


def _memory(t: torch.Tensor) -> Any:
    """Equal for tensors that show the same memory in the same way."""
    if t.layout is not torch.strided or not t.numel():
        return id(t)
    return t.untyped_storage().data_ptr(), t.storage_offset(), tuple(t.shape), t.stride(), t.dtype, t.device


def packed(name: str, value: Any) -> bytes:
    """`value` as the content of a file that `torch.load(weights_only=True)` reads.

    Args:
        name: what it is, for the error.
        value: tensors are copied to the CPU.

    Raises:
        TypeError: it has a value of another type; the message says where.
    """
    content = _bytes(on_cpu(value))
    if content is None or not _readable(content):
        raise TypeError(_refusal(name, value))
    return content


def unpacked(content: bytes) -> Any:
    """What `packed` has packed."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def checked(name: str, value: Any) -> None:
    """Checks the types in `value` without copying its tensors.

    Raises:
        TypeError: `torch.load(weights_only=True)` would not read it back.
    """
    packed(name, map_tensors(value, lambda t: None))


def _bytes(value: Any) -> bytes | None:
    """None if it cannot be pickled."""
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    return buffer.getvalue()


def _readable(content: bytes) -> bool:
    try:
        unpacked(content)
    except pickle.UnpicklingError:
        return False
    return True


def _refusal(name: str, value: Any) -> str:
    where, culprit = _culprit(name, value)
    kind = f"{type(culprit).__module__}.{type(culprit).__qualname__}".removeprefix("builtins.")
    advice = f"a checkpoint holds {_ADVICE}"
    if kind.startswith("numpy."):
        advice += "; save torch.from_numpy(array), or float(number)" if hasattr(culprit, "dtype") else ""
    elif hasattr(culprit, "state_dict"):
        advice += "; save its state_dict()"
    return f"{where} is a {kind}, which cannot be loaded without running code: {advice}"


def _culprit(where: str, value: Any) -> tuple[str, Any]:
    """The innermost value that cannot be read back, and the way to it."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping):
        items = [(k, v) for k, v in value.items()]
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    for key, item in items:
        content = _bytes(on_cpu(item))
        if content is None or not _readable(content):
            return _culprit(f"{where}[{key!r}]", item)
    return where, value
