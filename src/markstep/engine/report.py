"""What happened, for `markstep.explain()`."""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass, field


@dataclass
class ProgramReport:
    """One program.

    Attributes:
        name: its number, in order of discovery.
        calls: operator calls.
        numbers: those that change between steps and became inputs: (operator and argument, user's line) to count.
        tensor_inputs: storages it reads that exist before it.
        source: the user's line of its first call.
        state: what became of it: "recorded", "compiling", "ready", "eager is faster", or why it is not compiled.
        compile_s: seconds of compilation, None before; cached: it came from the artefact cache.
        runs: how often the compiled program ran.
        interpreted: how often its calls ran one by one.
        rewrites: what is computed in another way than it was recorded: name of the pass to the number of places.
        not_replayed: with replay=True: why the Python of the step still runs.
        eager_ms, compiled_ms: medians measured when it was first used.
    """

    name: str
    calls: int
    numbers: Counter[tuple[str, str]]
    tensor_inputs: int
    source: str
    state: str = "recorded"
    compile_s: float | None = None
    cached: bool = False
    runs: int = 0
    interpreted: int = 0
    rewrites: dict[str, int] = field(default_factory=dict)
    not_replayed: str = ""
    eager_ms: float | None = None
    compiled_ms: float | None = None

    @property
    def scalar_inputs(self) -> int:
        """How many numbers became inputs."""
        return self.numbers.total()


@dataclass
class Report:
    """Figures about everything that Markstep did in this process; prints as a summary.

    Attributes:
        programs: every program, see `ProgramReport`.
        boundaries: how often each boundary was met: (reason, user's line) to count.
        deoptimisations: what differed from a prediction: (difference, user's line) to count.
        new_programs: why programs were recorded: (first call that differed, user's line) to count.
        uncut: values that were read inside a step without ending it: (operator, user's line) to count.
        warnings: one line each.
    """

    programs: list[ProgramReport] = field(default_factory=list)
    boundaries: Counter[tuple[str, str]] = field(default_factory=Counter)
    deoptimisations: Counter[tuple[str, str]] = field(default_factory=Counter)
    new_programs: Counter[tuple[str, str]] = field(default_factory=Counter)
    uncut: Counter[tuple[str, str]] = field(default_factory=Counter)
    warnings: deque[str] = field(default_factory=lambda: deque(maxlen=50))
    eager_steps: int = 0
    compiled_steps: int = 0

    def __str__(self) -> str:
        lines = [f"Markstep: {len(self.programs)} programs, {self.compiled_steps} compiled steps, {self.eager_steps} eager steps"]
        shown = [p for p in self.programs if p.runs or p.interpreted or p.state != "recorded"]
        for p in shown:
            timing = f", compiled in {p.compile_s:.1f} s{' (from cache)' if p.cached else ''}" if p.compile_s is not None else ""
            speed = f", {p.compiled_ms:.1f} ms against {p.eager_ms:.1f} ms eager" if p.compiled_ms and p.eager_ms else ""
            lines.append(
                f"  {p.name}: {p.calls} calls from {p.source}: {p.tensor_inputs} tensors and {p.scalar_inputs} numbers in; "
                f"{p.state}{timing}{speed}; ran {p.runs} times compiled, {p.interpreted} times call by call"
                + (f"; its Python still runs: {p.not_replayed}" if p.not_replayed else "")
            )
            if p.rewrites:
                lines.append("    rewritten: " + ", ".join(f"{n} x {name}" for name, n in p.rewrites.items()))
            lines += [
                f"    {count} x {what} at {where} changes and is an input" for (what, where), count in p.numbers.most_common(4)
            ]
            if len(p.numbers) > 4:
                lines.append(f"    and numbers of {len(p.numbers) - 4} other places")
        if len(self.programs) > len(shown):
            lines.append(
                f"  and {len(self.programs) - len(shown)} programs that ran eagerly while they were recorded, once or twice"
            )
        for title, counter in (
            ("step ends", self.boundaries),
            ("values read inside a step without ending it", self.uncut),
            ("predictions that failed", self.deoptimisations),
            ("new programs because of", self.new_programs),
        ):
            if counter:
                lines.append(f"  {title}:")
                lines += [f"    {count} x {what} at {where}" for (what, where), count in counter.most_common(12)]
                if len(counter) > 12:
                    lines.append(f"    and {len(counter) - 12} other places")
        lines += [f"  warning: {w}" for w in self.warnings]
        return "\n".join(lines)


_report = Report()
_lock = threading.Lock()


def current() -> Report:
    """The report of this process."""
    return _report


def count(counter: Counter[tuple[str, str]], what: str, where: str) -> None:
    """Counts an event; at most 2,000 different ones are told apart."""
    with _lock:
        key = (what, where)
        if key not in counter and len(counter) >= 2000:
            key = ("other events", "many lines")
        counter[key] += 1


def reset() -> Report:
    """Starts a new report and returns it."""
    global _report
    _report = Report()
    return _report
