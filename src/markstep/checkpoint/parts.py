"""What a checkpoint consists of, and objects given one by one, in a list or in a dictionary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from markstep.checkpoint.errors import CheckpointError

_KINDS = ("model", "optimizer", "scheduler", "scaler", "loader")


@dataclass(frozen=True)
class Parts:
    """The objects to save or to load into.

    Attributes:
        model: a module.
        optimizer: one, a list or a dictionary of them, like the next three.
        scheduler: of learning rates, or anything else with `state_dict` and `load_state_dict`.
        scaler: a GradScaler.
        loader: differs between processes.
    """

    model: nn.Module | None = None
    optimizer: Any = None
    scheduler: Any = None
    scaler: Any = None
    loader: Any = None

    def __post_init__(self) -> None:
        if self.model is not None and not isinstance(self.model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, not a {type(self.model).__name__}; put several in a ModuleDict")
        for name in _KINDS[1:]:
            for key, one in named(getattr(self, name)).items():
                if not hasattr(one, "state_dict") or not hasattr(one, "load_state_dict"):
                    advice = ": wrap it in markstep.checkpoint.ResumableLoader" if name == "loader" else ""
                    raise TypeError(
                        f"{label(name, key)} is a {type(one).__name__}, without state_dict and load_state_dict{advice}"
                    )


def label(name: str, key: str) -> str:
    """How messages call one of several objects."""
    return f"{name}[{key}]" if key else name


def named(objects: Any) -> dict[str, Any]:
    """Objects by name: '' for a single one, '0', '1', ... in a list, keys of a dictionary."""
    if objects is None:
        return {}
    if isinstance(objects, Mapping):
        return {str(k): v for k, v in objects.items()}
    if isinstance(objects, list | tuple):
        return {str(i): v for i, v in enumerate(objects)}
    return {"": objects}


def states(objects: Any) -> Any:
    """The state dicts of objects, in the form in which the objects were given; dictionaries have strings as keys."""
    return like(objects, {key: one.state_dict() for key, one in named(objects).items()})


def like(objects: Any, found: dict[str, Any]) -> Any:
    """Values by name in the form in which the objects were given."""
    if isinstance(objects, list | tuple):
        return list(found.values())
    return found if isinstance(objects, Mapping) else found[""]


def form(objects: Any) -> str:
    """How objects were given, in words."""
    if isinstance(objects, list | tuple):
        return f"a list of {len(objects)}"
    return f"a dictionary with {', '.join(map(repr, named(objects)))}" if isinstance(objects, Mapping) else "a single one"


def forms(given: Parts) -> dict[str, str]:
    """How the objects of each kind were given."""
    return {name: form(one) for name in _KINDS if (one := getattr(given, name)) is not None}


def check_forms(given: Parts, saved: Mapping[str, str], origin: str) -> None:
    """Checks that all that is to be loaded was saved, and given in the same way.

    Raises:
        CheckpointError: it was not.
    """
    for name, own in forms(given).items():
        if name not in saved:
            raise CheckpointError(f"{origin} has no {name}")
        if own != saved[name]:
            raise CheckpointError(f"{origin} has {saved[name]} as {name}, but is to be loaded into {own}")


def matched(objects: Any, saved: Any) -> dict[str, tuple[Any, Any]]:
    """Each object with its saved state, which has the form of the objects."""
    old = named(saved) if isinstance(objects, Mapping | list | tuple) else {"": saved}
    return {key: (one, old[key]) for key, one in named(objects).items()}
