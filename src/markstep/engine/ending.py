"""A boundary at one place of the program tree, and what runs the program that ends there."""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

from markstep.engine.report import ProgramReport, current
from markstep.record.interpreter import run_calls
from markstep.record.program import Meta, Program, Scalar, leaves


class Executable(Protocol):
    """Runs a program on a session that has predicted it."""

    def run(self, session: Any) -> None:
        """Computes everything pending and fills the handles."""


class Interpreted:
    """Runs the pending calls one by one."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def run(self, session: Any) -> None:
        """See `Executable.run`."""
        run_calls(session, self.program.pending, release=True)


class Ending:
    """What is known about the program from the root of a tree to `node`.

    Attributes:
        seen: how often this program was met.
        live: slots that were held at the boundary at any time.
        executable: what runs it; None while it only runs eagerly or call by call.
        job: the compilation under way.
        missed: how often a held slot was not among the results of the executable.
    """

    def __init__(self, node: Any) -> None:
        self.node = node
        self.seen = 0
        self.live: set[int] = set()
        self.executable: Executable | None = None
        self.job: Any = None
        self.rejected = False
        self.missed = 0
        path = path_to(node)
        reports = current().programs
        self.report = ProgramReport(
            f"program {len(reports) + 1}", len(path), numbers_of(path), count_tensors(path), path[0].call.source
        )
        reports.append(self.report)

    def program(self) -> Program:
        """The program as it is known now."""
        path = path_to(self.node)
        calls = tuple(n.call for n in path)
        done = frozenset(i for n in path if "slice" in n.info for i in n.info["slice"].positions)
        created = {new.slot for i, c in enumerate(calls) if i not in done for new in c.creates}
        self.report.numbers, self.report.tensor_inputs = numbers_of(path), count_tensors(path)
        return Program(calls, done, frozenset(self.live & created))

    @property
    def root(self) -> Any:
        """The root of the tree."""
        node = self.node
        while node.parent is not None:
            node = node.parent
        return node

    def live_meta(self, slot: int) -> Meta:
        """How the call that allocates a slot sees it."""
        return next(new.meta for n in path_to(self.node) for new in n.call.creates if new.slot == slot)

    def invalidate(self) -> None:
        """The tree has changed above: what was compiled no longer fits."""
        self.executable, self.job, self.rejected = None, None, False
        self.report.state = "recorded"


def path_to(node: Any) -> list[Any]:
    """The nodes from below the root to `node`."""
    path = []
    while node.parent is not None:
        path.append(node)
        node = node.parent
    path.reverse()
    return path


def endings_below(node: Any) -> list[Ending]:
    """All endings at `node` and below it."""
    found, stack = [], [node]
    while stack:
        n = stack.pop()
        if "end" in n.info:
            found.append(n.info["end"])
        stack.extend(n.children)
    return found


def numbers_of(path: list[Any]) -> Counter[tuple[str, str]]:
    """The numbers that a path takes from outside: (operator and argument, user's line) to count."""
    found: Counter[tuple[str, str]] = Counter()
    for call in (n.call for n in path):
        names = [a.name for a in call.op._schema.arguments]
        for name, value in [*zip(names, call.args, strict=False), *call.kwargs.items()]:
            count = sum(type(v) is Scalar for v in leaves(value))
            if count:
                found[f"{call.op._schema.name.removeprefix('aten::')}({name}=)", call.source] += count
    return found


def count_tensors(path: list[Any]) -> int:
    """Storages that a path takes from outside."""
    created = {new.slot for n in path for new in n.call.creates}
    used = {slot for n in path for slot in n.call.reads}
    return len(used - created)
