"""Where the slots of a program are made, looked at and written."""

from __future__ import annotations

from collections import defaultdict

from markstep.record.program import Call, Program, Ref, leaves


class Uses:
    """An index over the pending calls of a program.

    Attributes:
        maker: slot to the position of the call that allocates it.
        users: slot to the positions of the calls that take it or give a view of it.
        written: slot to the positions of the calls that write to it.
    """

    def __init__(self, program: Program) -> None:
        self.calls = program.calls
        self.maker: dict[int, int] = {}
        self.users: dict[int, list[int]] = defaultdict(list)
        self.written: dict[int, list[int]] = defaultdict(list)
        for i in program.pending:
            call = self.calls[i]
            for new in call.creates:
                self.maker[new.slot] = i
            for slot in {*call.reads, *(r.slot for r in leaves(call.outs) if type(r) is Ref)}:
                self.users[slot].append(i)
            for slot in call.writes:
                self.written[slot].append(i)

    def made_by(self, slot: int, *names: str) -> tuple[int, Call] | None:
        """Position and call that allocates a slot, if it is of one of the named operators."""
        at = self.maker.get(slot)
        return (at, self.calls[at]) if at is not None and self.calls[at].op.name() in names else None

    def real_users(self, slot: int) -> list[int]:
        """The users without calls that only look at it in another way."""
        return [i for i in self.users[slot] if not self.is_view(i, slot)]

    def is_view(self, position: int, slot: int) -> bool:
        """Does the call give nothing but another view of the slot?"""
        call = self.calls[position]
        views = [r.slot for r in leaves(call.outs) if type(r) is Ref]
        return call.reads == [slot] and not call.creates and not call.writes and views == [slot]
