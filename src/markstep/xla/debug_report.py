"""The report of PT_XLA_DEBUG: why a step ended, what was compiled and why, and which line asked for it.

PT_XLA_DEBUG_LEVEL=1 reports new programs, 2 (or PT_XLA_DEBUG=1) every execution, to PT_XLA_DEBUG_FILE or stderr, in the
master process only.
"""

from __future__ import annotations

import itertools
import os
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from markstep.engine import report
from markstep.engine.report import ProgramReport
from markstep.xla import env, processes

_OWN = str(Path(__file__).resolve().parent.parent) + os.sep
_LAUNCHER = _OWN + "launch.py"
_RULE = "=" * 80
_told: Counter[tuple[str, str]] = Counter()


def execution(cause: str, new_programs: Sequence[ProgramReport]) -> None:
    """Reports the end of a step, if it was asked for."""
    level = env.debug_level()
    if level < 1 or processes.ordinal() != 0:
        return
    why = _news()
    text = "".join(_block("Compilation", cause, program, why) for program in new_programs)
    if level > 1:
        text += _block("Execution", cause, new_programs[-1] if new_programs else None)
    if text:
        write(text)


def write(text: str) -> None:
    """Adds text to the debug report."""
    path = os.environ.get("PT_XLA_DEBUG_FILE")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    else:
        sys.stderr.write(text)


def _news() -> list[str]:
    """What differed from known programs since the last call: the reasons for new ones."""
    global _told
    now = report.current().new_programs + report.current().deoptimisations
    news = [f"{difference} at {where}" for (difference, where), times in now.items() if times > _told[difference, where]]
    _told = now
    return news


def _block(kind: str, cause: str, program: ProgramReport | None, why: Sequence[str] = ()) -> str:
    lines = [_RULE, f"{kind} Cause", f"  {cause}"]
    if program is not None:
        lines += [
            "Program Info:",
            f"  Program: {program.name}, {program.calls} operator calls from {program.source}",
            f"  Number of Inputs: {program.tensor_inputs} tensors, {program.scalar_inputs} numbers",
        ]
        lines += ["Differs From Known Programs:", *(f"  {text}" for text in why)] if why else []
    lines.append("Python Frame Triggered Execution:")
    lines += [f"  {frame.name} ({frame.filename}:{frame.lineno})" for frame in _user_frames()]
    lines += ["-" * 80, _RULE]
    return "".join(f"{kind} Analysis: {line}\n" for line in lines)


def _user_frames() -> list[traceback.FrameSummary]:
    limit = int(os.environ.get("PT_XLA_DEBUG_MAX_FRAME", 8))
    frames = itertools.takewhile(lambda f: f.filename != _LAUNCHER, reversed(traceback.extract_stack()))
    return [f for f in frames if not f.filename.startswith(_OWN)][:limit]
