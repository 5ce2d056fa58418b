"""The state machine of one thread: record, predict, replay at the boundary, deoptimise.

Every operator call inside a region comes to `Engine.on_call`. In the recording state it runs eagerly and is written into
the program tree of its site. In the predicting state it computes nothing: the tree says what its result looks like. At a
boundary the program that was followed runs at once; when a call differs from the prediction, the calls so far run one by
one from the recording, and recording goes on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from markstep.engine import report
from markstep.engine.ending import Ending, endings_below
from markstep.engine.interrupts import uninterrupted
from markstep.engine.site import Site
from markstep.engine.slices import Slice, early_slice
from markstep.engine.sources import user_line
from markstep.record.interpreter import run_calls
from markstep.record.program import Call, leaves
from markstep.record.recorder import (
    append,
    describe_arguments,
    first_difference,
    is_recordable,
    promote,
    record_call,
    same_tensors,
    written_slots,
)
from markstep.record.schema import Kind, facts

log = logging.getLogger("markstep")
_MAX_CALLS = 60_000
_MAX_BRANCHES = 6
_MAX_STARTS = 65


class Mode(TorchDispatchMode):
    """Sends every operator call of the thread to its engine.

    It is not pushed like other modes: see `record/native_code/interception.h`.
    """

    def __init__(self, engine: Engine, native: ModuleType) -> None:
        super().__init__()
        self.engine = engine
        self.intercept = native.intercept
        self.miss = native.MISS
        self.everything = True
        self.session = engine.session
        self.match = engine.session.match

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would wrap the handler below in 3 us of its own; nothing here is ever traced

    def __enter__(self) -> Mode:
        self.intercept(self, self.session, self.everything)
        return self

    def __exit__(self, *exception: object) -> None:
        self.intercept(None, None, True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        session = self.session
        if session.predicting and not session.paused:
            out = self.match(func, args, kwargs)
            if out is not self.miss:
                return out
        return self.engine.on_call(func, types, args, kwargs or {})


class Engine:
    """Follows the operator calls of one thread through the program tree of a site."""

    def __init__(self, native: ModuleType) -> None:
        self.native = native
        self.session = native.Session()
        self.mode = Mode(self, native)
        self.site: Site | None = None
        self.done: set[int] = set()
        self.early_values: dict[int, tuple[tuple[int, ...], Any]] = {}
        self.endings: list[Ending] = []
        self.replayed = True

    @property
    def predicting(self) -> bool:
        """Are calls compared with the expected ones? The session knows it: calls that fit do not come here."""
        return bool(self.session.predicting)

    @predicting.setter
    def predicting(self, value: bool) -> None:
        self.session.predicting = value

    @property
    def paused(self) -> int:
        """In how many sections that are not to be followed the thread is."""
        return int(self.session.paused)

    @paused.setter
    def paused(self, value: int) -> None:
        self.session.paused = value

    # ------------------------------------------------------------ regions

    def enter(self, site: Site) -> None:
        """Starts following calls of `site`; the mode must be pushed by the caller."""
        self.site = site
        self.endings = []
        self.replayed = True
        self._start()

    def leave(self, reason: str, where: str) -> None:
        """Ends the region with a boundary."""
        try:
            self.boundary(reason, where)
        finally:
            self._forget()

    def abort(self) -> None:
        """The user's code raised: runs what it had called so far, exactly as eager execution would have."""
        try:
            if self.predicting and self.session.length:
                self._run_pending()
        finally:
            self._forget()

    def _forget(self) -> None:
        site, self.site = self.site, None
        self.predicting = False
        if site is not None:
            self.session.begin_run()
            self.session.reset(site.root, False)

    def _start(self) -> None:
        if self.site is None:
            return  # a boundary is under way, and starts anew at its end
        self.predicting = self.site.predictable
        self.done = set()
        self.early_values = {}
        self.session.reset(self.site.root, self.predicting)

    # ------------------------------------------------------------ calls

    def on_call(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One operator call that the fast path did not match."""
        if self.site is None or not isinstance(func, torch._ops.OpOverload):
            if self.site is not None:
                self._cut(getattr(func, "__name__", str(func)))
            return func(*args, **kwargs)
        known = facts(func)
        if known.kind is Kind.PASS:
            return func(*args, **kwargs)
        if types and any(not issubclass(t, torch.nn.Parameter) and t is not torch.Tensor for t in types):
            return NotImplemented  # a tensor subclass: its own handler calls the inner operators
        if self.paused:
            return self._paused_call(func, args, kwargs)
        if self.session.length >= _MAX_CALLS:
            self._cut("a step of more than 60,000 calls")
        if self.predicting:
            return self._unpredicted(func, args, kwargs)
        return self._record(func, args, kwargs)

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        session, known = self.session, facts(func)
        node = session.follow(func, args, kwargs)
        if node is None and self._promote(func, args, kwargs):
            node = session.follow(func, args, kwargs)
        if node is not None and node.special:
            self.done.update(node.info["slice"].positions)
            return func(*args, **kwargs)
        run: Callable[..., Any] | None = None
        if node is not None:
            try:
                out = func(*args, **kwargs)
            except BaseException:
                session.retreat()
                raise
            if session.confirm(out, args, kwargs):
                return out
            session.retreat()
            run = lambda *_, **__: out  # noqa: E731
        elif known.kind is not Kind.LAZY or not self._recordable(func, args, kwargs):
            return self._not_lazy(func, args, kwargs)
        if node is None and self._is_loose(func, args, kwargs):
            return func(*args, **kwargs)
        if unfit := self._unfit(func):
            self._cut(unfit)
            return func(*args, **kwargs) if run is None else run()
        where = user_line()
        if session.length and (session.current.children or session.current.info.get("end")):
            self._note_new_program(func, args, kwargs, where)
        recorded = False
        try:
            recorded, result = record_call(self.native, session, func, args, kwargs, where, run)
        finally:
            if not recorded:
                session.current.info.setdefault("unfit", set()).add(func)
        if not recorded:
            self._cut(func.name())
        return result

    def _unpredicted(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        session = self.session
        node = session.follow(func, args, kwargs)
        if node is not None:
            if node.special:
                piece: Slice = node.info["slice"]
                if self._is_stale(piece, tensors_in(args, kwargs)):
                    session.retreat()
                    self._cut(func.name())
                    return func(*args, **kwargs)
                self._run_early(piece)
                value = func(*args, **kwargs)
                self.early_values[piece.position] = (piece.chosen, value)
                return value
            session.retreat()  # match and follow disagree only about special nodes
        if facts(func).kind is not Kind.LAZY or not self._recordable(func, args, kwargs):
            return self._not_lazy(func, args, kwargs)
        if self._is_loose(func, args, kwargs):
            return func(*args, **kwargs)
        if self._promote(func, args, kwargs):
            out = session.match(func, args, kwargs)
            if out is not self.native.MISS:
                return out
        if unfit := self._unfit(func):
            self._cut(unfit)
            return func(*args, **kwargs)
        self._deoptimise(func, args, kwargs)
        return self._record(func, args, kwargs)

    def _not_lazy(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A value access or a call that no program can hold."""
        session, known = self.session, facts(func)
        if not session.length:
            return func(*args, **kwargs)
        if known.kind is Kind.VALUE and not known.mutates and not known.random and self._recordable(func, args, kwargs):
            tensors = tensors_in(args, kwargs)
            slots = {session.lookup(t) for t in tensors} - {-1}
            piece = early_slice(session.path, self.done, slots)
            if piece is not None and not (self.predicting and self._is_stale(piece, tensors)):
                where = user_line()
                templates = describe_arguments(self.native, session, args, kwargs)
                call = Call(func, *templates, None, written_slots(known, *templates), where, torch.is_grad_enabled())
                node = append(self.native, session, call, special=True)
                node.info["slice"] = piece
                report.count(report.current().uncut, func.name(), where)
                if self.predicting:
                    self._run_early(piece)
                self.done.update(piece.positions)
                return func(*args, **kwargs)
        self._cut(func.name())
        return func(*args, **kwargs)

    def _is_stale(self, piece: Slice, tensors: list[torch.Tensor]) -> bool:
        """Would running these calls early mix up memory that pending calls use through another storage, say numpy's?"""
        return bool(self.session.stale([*tensors, *piece.touched], piece.writes))

    def _run_early(self, piece: Slice) -> None:
        """Runs a slice of the pending calls now, for the last call of the path."""
        if piece.chosen:
            for slot in piece.touched:
                self.session.unflag(slot)
            self._run(piece.chosen, release=False)
            for slot in piece.written_later:
                self.session.flag(slot)
        self.done.update(piece.positions)

    def _promote(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Turns constants that differ from an otherwise equal expected call into inputs."""
        for child in self.session.current.children:
            if child.func is not func or child.special:
                continue
            call = promote(child.call, args, kwargs)
            if call is not None:
                child.replace(call)
                for ending in endings_below(child):
                    ending.invalidate()
                return True
        return False

    def _is_loose(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Is this a view of something from before the program, and another one every time, like `data[i : i + n]`?

        Then it is not recorded: it runs at once, and what it gives is an input of the calls that use it.
        """
        current = self.session.current
        loose = current.info.get("loose", ())
        same = [c for c in current.children if c.func is func]
        if not facts(func).view or not (same or func in loose):
            return False
        slots = {self.session.lookup(t) for t in leaves(args) if isinstance(t, torch.Tensor)}
        if any(new.slot in slots for n in self.session.path for new in n.call.creates):
            return False
        if func not in loose:
            alike = [c for c in same if same_tensors(self.native, self.session, c.call, args, kwargs)]
            if not alike:
                return False
            current.info["loose"] = {*loose, func}
            for child in alike:
                for ending in endings_below(child):
                    ending.invalidate()
                current.drop(child)
        return True

    def _recordable(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Can the program hold this call? Not if it counts from the start of a storage that is used elsewhere now."""
        if not is_recordable(self.native, args, kwargs):
            return False
        tensors = (v for v in leaves((args, tuple(kwargs.values()))) if isinstance(v, torch.Tensor))
        return not func._schema.name.startswith("aten::as_strided") or not any(map(self.session.shift, tensors))

    def _unfit(self, func: Any) -> str:
        """Why a call at this place of the tree is better left outside of programs; empty if it is not."""
        current = self.session.current
        if func in current.info.get("unfit", ()):
            return func.name()
        branches = len(current.children) if not self.session.length else sum(c.func is func for c in current.children)
        limit = _MAX_BRANCHES if self.session.length else _MAX_STARTS
        return f"{func.name()} differs every time" if branches >= limit else ""

    # ------------------------------------------------------------ pausing

    def _paused_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.session.length:
            known = facts(func)
            tensors = tensors_in(args, kwargs)
            slots = {self.session.lookup(t) for t in tensors} - {-1}
            random = (known.random or known.rng_state) and any(facts(n.call.op).random for n in self.session.path)
            depends = bool(slots) and self._depends(slots, known.mutates)
            if random or depends or self.session.stale(tensors, known.mutates):
                self.boundary("a paused section uses a value of the step", user_line())
        return func(*args, **kwargs)

    def _depends(self, slots: set[int], mutates: bool) -> bool:
        if mutates:
            return True
        calls = [n.call for n in self.session.path]
        return any(not slots.isdisjoint(c.writes) or any(n.slot in slots for n in c.creates) for c in calls)

    # ------------------------------------------------------------ boundaries

    def before_reading(self, tensor: torch.Tensor, reason: str) -> None:
        """Code outside the dispatcher is about to read a tensor: ends the program if the tensor waits for its calls.

        While recording it has its value already, but the program must end in the same place as when predicting.
        """
        session = self.session
        if not session.length:
            return
        if self.predicting:
            pending = self.native.is_pending(tensor) or session.stale([tensor], False)
        else:
            pending = self._depends({session.lookup(tensor)} - {-1}, mutates=False)
        if pending:
            self.boundary(reason, user_line())

    def before_sharing(self, tensor: torch.Tensor, reason: str) -> None:
        """Code outside the dispatcher may read or write a tensor: ends the program if any call of it uses the tensor's memory."""
        if self.session.length and (self.session.lookup(tensor) >= 0 or self.native.is_pending(tensor)):
            self.boundary(reason, user_line())

    def _cut(self, what: str) -> None:
        if self.session.length:
            self.boundary(what, user_line())

    def boundary(self, reason: str, where: str) -> None:
        """Runs everything that is pending and fills every live handle; the next call starts a new program."""
        session, site = self.session, self.site
        if site is None:
            return
        if not session.length:
            self._start()
            return
        report.count(report.current().boundaries, reason, where)
        node = session.current
        ending: Ending = node.info.get("end") or Ending(node)
        node.info["end"] = ending
        ending.seen += 1
        self.endings.append(ending)
        predicting, self.predicting, self.site = self.predicting, False, None  # nothing below is a part of the step
        try:
            if predicting:
                self._replay(ending)
            else:
                self.replayed = False
                ending.live.update(session.alive())
            site.seen(ending)
        finally:
            self.site = site
            session.begin_run()
            self._start()

    def _replay(self, ending: Ending) -> None:
        session = self.session
        live = session.live()
        if ending.executable is not None and ending.live.issuperset(live) and not session.overlaps():
            session.begin_run()
            with uninterrupted():
                ending.executable.run(session)
            ending.report.runs += 1
            return
        self.replayed = False
        if not ending.live.issuperset(live):
            ending.missed += 1
            ending.live.update(live)
            if ending.missed > 1:
                ending.invalidate()
        self._run_pending()
        ending.report.interpreted += 1

    def _run_pending(self) -> None:
        self.session.begin_run()
        self._run([i for i in range(self.session.length) if i not in self.done], release=True)

    def _run(self, positions: Sequence[int], *, release: bool) -> None:
        """Runs calls. If one fails, all before it have run in the end and none after it, as in eager execution."""
        ran: set[int] = set()
        self.paused += 1  # what wakes threads up meanwhile, be it a lock of Python's own, hands over nothing of the step
        try:
            with uninterrupted():
                run_calls(self.session, positions, release=release, done=ran)
        except BaseException:
            failed = next(i for i in positions if i not in ran)
            self.session.begin_run()
            ran |= self.done
            run_calls(self.session, [i for i in range(failed) if i not in ran], release=False)
            self._start()
            raise
        finally:
            self.paused -= 1

    def _deoptimise(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.session.length or self.session.current.children:
            difference = self._difference(func, args, kwargs)
            report.count(report.current().deoptimisations, difference, user_line())
        self._run_pending()
        self.session.weaken()
        self.predicting = False

    def _difference(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        children = self.session.current.children
        same = [c for c in children if c.func is func] or children
        if not same:
            return f"the step went on with {func.name()}"
        return first_difference(self.native, self.session, same[0].call, func, args, kwargs)

    def _note_new_program(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> None:
        report.count(report.current().new_programs, self._difference(func, args, kwargs), where)


def tensors_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """All tensors among the arguments of a call."""
    return [v for v in leaves((args, tuple(kwargs.values()))) if isinstance(v, torch.Tensor)]
