"""Checks that a program makes sense; tests run it after every change of a program."""

from __future__ import annotations

from markstep.record.program import New, Program, Ref, Same, leaves


def verify(program: Program) -> None:
    """Raises AssertionError, naming the call, when the program breaks a rule of the representation.

    Rules: slots are numbered in order of first use; nothing is used before it exists; a storage is allocated once; writes
    name arguments; `Same` points at a tensor argument; early calls read nothing that a later call allocates; results exist.
    """
    known: set[int] = set()
    created: dict[int, int] = {}
    for i, call in enumerate(program.calls):
        refs = [r for r in leaves((call.args, tuple(call.kwargs.values()))) if type(r) is Ref]
        for ref in refs:
            if ref.slot not in known:
                assert ref.slot == len(known), f"call {i} ({call}): s{ref.slot} is used before s{len(known)}"
                known.add(ref.slot)
            if i in program.done and ref.slot in created:
                assert created[ref.slot] in program.done, f"call {i} ({call}) runs early but reads s{ref.slot}, which does not"
        assert set(call.writes) <= {r.slot for r in refs}, f"call {i} ({call}) writes to something that is no argument"
        for out in leaves(call.outs):
            if type(out) is New:
                assert out.slot == len(known), f"call {i} ({call}): new s{out.slot}, s{len(known)} was expected"
                known.add(out.slot)
                created[out.slot] = i
            elif type(out) is Ref:
                assert out.slot in known, f"call {i} ({call}): result on unknown s{out.slot}"
            elif type(out) is Same:
                assert 0 <= out.position < len(refs), f"call {i} ({call}): no tensor argument {out.position}"
    assert program.live <= set(created), f"results {sorted(program.live - set(created))} are allocated by no call"
