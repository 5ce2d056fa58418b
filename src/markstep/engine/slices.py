"""Which pending calls a value depends on, and whether they may run before the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markstep.record.schema import facts

_MAX_CALLS = 64
_MAX_ELEMENTS = 1 << 20
_HEAVY = ("mm", "conv", "attention", "linear", "lstm", "gru", "rnn", "fft", "cdist", "einsum", "matmul")


@dataclass(frozen=True, slots=True)
class Slice:
    """Pending calls that run early, for a call that asks for a value. The same wherever that call is the next of its path.

    Attributes:
        position: of the call that asks.
        chosen: positions of the calls that its value depends on, increasing.
        touched: slots that they use.
        writes: do they change a storage?
        written_later: of these slots and those that they create, the ones that calls which stay pending write to.
    """

    position: int
    chosen: tuple[int, ...]
    touched: tuple[int, ...]
    writes: bool
    written_later: tuple[int, ...]

    @property
    def positions(self) -> tuple[int, ...]:
        """All that has run when the value is known."""
        return (*self.chosen, self.position)


def early_slice(path: Sequence[Any], done: set[int], slots: set[int]) -> Slice | None:
    """The pending calls that have to run before `slots` can be read.

    These are the calls that compute the slots, and all earlier ones that look at a storage which one of them
    overwrites. Returns None when the slice is not small, or must not run ahead of the calls that stay pending: it draws
    random numbers.
    """
    need, overwritten = set(slots), set[int]()
    chosen: list[int] = []
    elements = 0
    for i in range(len(path) - 1, -1, -1):
        if i in done:
            continue
        call = path[i].call
        created = call.creates
        touched = {*call.reads, *call.writes}
        if need.isdisjoint([*call.writes, *(n.slot for n in created)]) and overwritten.isdisjoint(touched):
            continue
        known = facts(call.op)
        elements += sum(math.prod(n.meta[0]) for n in created)
        heavy = any(word in call.op._schema.name for word in _HEAVY)
        if heavy or known.random or known.rng_state or len(chosen) >= _MAX_CALLS or elements > _MAX_ELEMENTS:
            return None
        chosen.append(i)
        need |= touched
        overwritten.update(call.writes)
    chosen.reverse()
    calls = [path[i].call for i in chosen]
    touched = {slot for call in calls for slot in (*call.reads, *call.writes)}
    created = {new.slot for call in calls for new in call.creates}
    stay = set(range(len(path))) - done - set(chosen)
    later = {slot for i in stay for slot in path[i].call.writes}
    return Slice(len(path), tuple(chosen), tuple(touched), any(call.writes for call in calls), tuple((touched | created) & later))
