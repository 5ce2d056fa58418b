"""From recorded programs to compiled ones. The engine needs only `submit`."""

from __future__ import annotations

from markstep.codegen.jobs import Job
from markstep.engine.options import Options
from markstep.engine.report import ProgramReport
from markstep.record.program import Program

__all__ = ["Job", "submit"]


def submit(program: Program, options: Options, figures: ProgramReport) -> Job:
    """Starts compiling a program; `figures` is filled in as it goes."""
    return Job(program, options, figures)
