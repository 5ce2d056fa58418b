"""Which pending calls a value depends on, and whether they may run before the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from markstep.record.program import leaves
from markstep.record.schema import facts

_MAX_CALLS = 64
_MAX_ELEMENTS = 1 << 20
_HEAVY = ("mm", "conv", "attention", "linear", "lstm", "gru", "rnn", "fft", "cdist", "einsum", "matmul")


def early_slice(path: Sequence[Any], done: set[int], slots: set[int]) -> list[int] | None:
    """Positions of the pending calls that have to run before `slots` can be read.

    Returns None when the slice is not small, or must not run ahead of the calls that stay pending: it draws random
    numbers, or writes a storage that an earlier pending call still reads.
    """
    need = set(slots)
    chosen: list[int] = []
    elements = 0
    for i in range(len(path) - 1, -1, -1):
        if i in done:
            continue
        call = path[i].call
        created = call.creates
        if need.isdisjoint(call.writes) and need.isdisjoint(n.slot for n in created):
            continue
        known = facts(call.op)
        elements += sum(math.prod(n.meta[0]) for n in created)
        heavy = any(word in call.op._schema.name for word in _HEAVY)
        if heavy or known.random or known.rng_state or len(chosen) >= _MAX_CALLS or elements > _MAX_ELEMENTS:
            return None
        chosen.append(i)
        need.update(call.reads)
        need.update(n.slot for n in created)
    chosen.reverse()
    return None if _overtakes(path, done, chosen) else chosen


def _overtakes(path: Sequence[Any], done: set[int], chosen: list[int]) -> bool:
    """Would running `chosen` now change what an earlier call, still pending, reads or leaves behind?"""
    if not any(path[i].call.writes for i in chosen):
        return False
    first_write = {slot: i for i in reversed(chosen) for slot in path[i].call.writes}
    last, inside = chosen[-1], set(chosen)
    for j in range(last):
        if j in done or j in inside:
            continue
        call = path[j].call
        touched = {*call.reads, *call.writes, *(r.slot for r in leaves(call.outs) if hasattr(r, "slot"))}
        if any(slot in first_write and j < max(i for i in chosen if slot in path[i].call.writes) for slot in touched):
            return True
    return False
