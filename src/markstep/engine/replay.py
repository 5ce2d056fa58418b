"""`replay=True`: once a step is compiled, its Python is skipped.

Two predicted steps in a row are compared. Every storage the program reads must be an argument of the function or the same
storage both times (weights, optimizer state), and no number may come from Python; then the compiled program can be run
directly on new arguments. Anything else keeps the Python, and the report says why.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from markstep.engine.interrupts import uninterrupted
from markstep.record.interpreter import run_calls
from markstep.record.program import Meta

_CONSTANTS = (int, float, bool, str, type(None))


class NotReplayable(Exception):
    """Why the Python of the step has to run."""


class Snapshot:
    """What one predicted step read, held and returned; taken between its last call and its boundary."""

    def __init__(self, engine: Any, args: Any, kwargs: Any, result: Any) -> None:
        session = engine.session
        self.ending = session.current.info.get("end")
        if engine.endings or not engine.predicting or self.ending is None or self.ending.executable is None:
            raise NotReplayable("the step is cut by a value that is read inside it, or is not compiled")
        if session.scalars:
            raise NotReplayable("a Python number changes every step (a learning rate, say): keep it in a tensor")
        self.keys = session.keys()
        self.arguments = _argument_slots(engine, args, kwargs)
        self.early = dict(engine.early_values)
        self.results, self.result_spec = _result_slots(engine, result, self.keys)
        returned = {place[0] for place in self.results if isinstance(place, tuple)}
        self.kept = {slot: self.ending.live_meta(slot) for slot in session.live() if slot not in returned}
        self.kept_tensors = {slot: session.tensor(slot, meta) for slot, meta in self.kept.items()}
        self.frozen = session.freeze()


class Replayer:
    """Runs the compiled program of a function without its Python.

    Attributes:
        why_not: the reason why it does not; empty when it does or may soon.
    """

    def __init__(self) -> None:
        self.last: Snapshot | None = None
        self.ready = False
        self.why_not = ""

    def observe(self, engine: Any, args: Any, kwargs: Any, result: Any) -> None:
        """A predicted step is about to reach its boundary."""
        try:
            new = Snapshot(engine, args, kwargs, result)
            if self.last is not None and self.last.ending is new.ending:
                _check_inputs(self.last, new)
                for slot in new.arguments:
                    new.frozen.forget_input(slot)
                self.ready = True
            self.last = new
            self.why_not = ""
        except NotReplayable as reason:
            self.last, self.ready, self.why_not = None, False, str(reason)

    def run(self, engine: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
        """(True, result) when the step was replayed; (False, None) when its Python has to run."""
        snapshot = self.last
        if not self.ready or snapshot is None:
            return False, None
        executable = snapshot.ending.executable
        given = _matching_arguments(engine, snapshot, args, kwargs)
        if given is None or executable is None or snapshot.frozen.abandoned():
            self.last, self.ready = None, False
            return False, None
        session = engine.session
        session.thaw(snapshot.frozen, given)
        try:
            if not _early_values_hold(session, snapshot):
                return False, None
            with uninterrupted():
                executable.run(session)
            snapshot.ending.report.runs += 1
            self._refresh_kept(engine, snapshot)
            return True, _build_result(session, snapshot, args, kwargs)
        finally:
            session.reset(snapshot.ending.root, False)

    def _refresh_kept(self, engine: Any, snapshot: Snapshot) -> None:
        """Results that the step left behind (gradients, say): the tensors from the last real step get the new data."""
        for slot, meta in snapshot.kept.items():
            engine.native.take(snapshot.kept_tensors[slot], engine.session.tensor(slot, meta))


def _argument_slots(engine: Any, args: Any, kwargs: Any) -> dict[int, tuple[int, Meta]]:
    found: dict[int, tuple[int, Meta]] = {}
    for place, leaf in enumerate(tree_flatten((args, kwargs))[0]):
        if isinstance(leaf, torch.Tensor):
            slot = engine.session.lookup(leaf)
            if slot >= 0:
                found.setdefault(slot, (place, engine.native.meta(leaf)))
        elif not isinstance(leaf, _CONSTANTS):
            raise NotReplayable(f"an argument is a {type(leaf).__name__}, which may have changed inside")
    return found


def _result_slots(engine: Any, result: Any, keys: list[Any]) -> tuple[list[Any], Any]:
    flat, spec = tree_flatten(result)
    places: list[Any] = []
    for leaf in flat:
        if isinstance(leaf, torch.Tensor):
            if leaf.requires_grad and not leaf.is_leaf:
                raise NotReplayable("the step returns a tensor that autograd could still go back from: return it detached")
            slot = engine.session.lookup(leaf)
            if slot < 0 or keys[slot] is not None:
                raise NotReplayable("the step returns a tensor that it did not compute")
            places.append((slot, engine.native.meta(leaf)))
        elif isinstance(leaf, _CONSTANTS):
            places.append([leaf])
        else:
            raise NotReplayable(f"the step returns a {type(leaf).__name__}")
    return places, spec


def _check_inputs(old: Snapshot, new: Snapshot) -> None:
    for slot, (before, now) in enumerate(zip(old.keys, new.keys, strict=True)):
        if now is None or (slot in old.arguments and slot in new.arguments):
            continue
        if before != now:
            raise NotReplayable("the step reads a tensor that Python makes anew each time and that is no argument")
    if set(old.kept) != set(new.kept):
        raise NotReplayable("what the step leaves behind differs from step to step")


def _matching_arguments(engine: Any, snapshot: Snapshot, args: Any, kwargs: Any) -> dict[int, torch.Tensor] | None:
    flat = tree_flatten((args, kwargs))[0]
    given: dict[int, torch.Tensor] = {}
    for slot, (place, meta) in snapshot.arguments.items():
        leaf = flat[place] if place < len(flat) else None
        if not isinstance(leaf, torch.Tensor) or engine.native.meta(leaf) != meta or not engine.native.is_plain(leaf):
            return None
        given[slot] = leaf
    return given


def _early_values_hold(session: Any, snapshot: Snapshot) -> bool:
    """Are the values that Python looked at inside the step the same again?"""
    path = session.path
    done: set[int] = set()
    for position, (chosen, value) in snapshot.early.items():
        if any(path[i].call.writes for i in chosen):
            return False
        run_calls(session, [i for i in chosen if i not in done], release=False)
        done.update(chosen)
        args, kwargs = session.arguments(position)
        if path[position].call.op(*args, **kwargs) != value:
            return False
    return True


def _build_result(session: Any, snapshot: Snapshot, args: Any, kwargs: Any) -> Any:
    values = [session.tensor(*place) if isinstance(place, tuple) else place[0] for place in snapshot.results]
    return tree_unflatten(values, snapshot.result_spec)
