"""Names of weights that differ by what wraps the model: `module.` (DDP), `_orig_mod.` (torch.compile), `model.`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

_PREFIXES = ("module.", "model.")
_COMPILED = "_orig_mod"


@dataclass(frozen=True)
class Repair:
    """How names in a checkpoint become those of the model.

    Attributes:
        names: the model's name for each name in the checkpoint.
        text: what is done to them; empty if nothing.
    """

    names: dict[str, str]
    text: str = ""


def repair(saved: Collection[str], wanted: Collection[str]) -> Repair | None:
    """Matches names in a checkpoint with those of a model; None if no prefix makes all of them match exactly.

    `module.` and `model.` are stripped from, or added to, the beginning of all names, as often as it takes; `_orig_mod.`,
    which torch.compile also leaves inside of names when it compiles parts of a model, may be anywhere.

    Args:
        saved: names in the checkpoint.
        wanted: names in the model.
    """
    if set(saved) == set(wanted):
        return Repair({name: name for name in saved})
    plain_saved = {_without_compiled(name): name for name in saved}
    plain_wanted = {_without_compiled(name): name for name in wanted}
    if not len(plain_saved) == len(saved) == len(plain_wanted) == len(wanted):
        return None
    for old in _common(plain_saved):
        for new in _common(plain_wanted):
            if {new + name[len(old) :] for name in plain_saved} == set(plain_wanted):
                names = {raw: plain_wanted[new + name[len(old) :]] for name, raw in plain_saved.items()}
                return Repair(names, _describe(names))
    return None


def _without_compiled(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != _COMPILED)


def _common(names: Collection[str]) -> list[str]:
    """Beginnings made of known prefixes that all names share: '', 'module.', 'module.model.', ..."""
    found = [""]
    while names:
        longer = [found[-1] + p for p in _PREFIXES if all(n.startswith(found[-1] + p) for n in names)]
        if not longer:
            break
        found += longer
    return found


def _describe(names: dict[str, str]) -> str:
    changes = {_change(old, new) for old, new in names.items()}
    if len(changes) == 1:
        stripped, added = changes.pop()
        parts = [f"stripped {stripped!r} from" if stripped else "", f"added {added!r} to" if added else ""]
        return f"{' and '.join(filter(None, parts))} all {len(names)} names"
    changed = [(old, new) for old, new in names.items() if old != new]
    example = f"{changed[0][0]!r} to {changed[0][1]!r}"
    return f"changed {len(changed)} of {len(names)} names by known prefixes, for example {example}"


def _change(old: str, new: str) -> tuple[str, str]:
    """What stands before the longest common end of two names, part by part."""
    a, b = old.split("."), new.split(".")
    same = 0
    while same < min(len(a), len(b)) and a[-1 - same] == b[-1 - same]:
        same += 1
    return tuple("".join(f"{part}." for part in parts[: len(parts) - same]) for parts in (a, b))  # type: ignore[return-value]
