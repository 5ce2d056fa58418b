"""The child process that compiles: reads pickled requests on stdin, answers on its original stdout."""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import sys
import traceback
from pathlib import Path
from typing import Any, BinaryIO


def send(stream: BinaryIO, message: Any) -> None:
    """Writes one message: its length as 8 bytes, then the pickle."""
    data = pickle.dumps(message)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Reads one message. Raises EOFError when the other side is gone."""
    header = stream.read(8)
    if len(header) < 8:
        raise EOFError
    return pickle.loads(stream.read(struct.unpack("<Q", header)[0]))


def main() -> None:
    """Serves requests until the parent closes the pipe."""
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not end up between the answers
    _step_back()
    while True:
        try:
            request = receive(requests)
        except EOFError:
            return
        send(answers, _serve(request))


def _step_back() -> None:
    """Runs only when nobody else wants the processor: training must not wait for the compiler."""
    os.nice(19)
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _serve(request: dict[str, Any]) -> dict[str, Any]:
    try:
        import torch

        import markstep.engine.rng  # noqa: F401  (the operators that programs may hold)
        from markstep.codegen.build import compile_program
        from markstep.codegen.cache import Store
        from markstep.record.program import Program

        torch.set_num_threads(request["threads"])
        program = pickle.loads(request["program"])
        assert isinstance(program, Program)
        store = Store(Path(request["cache_dir"]))
        return {"key": compile_program(program, request["recipe"], store, request["compilers"])}
    except BaseException as error:
        lines = traceback.format_exception_only(error)
        return {"error": "".join(lines).strip(), "trace": traceback.format_exc()}


if __name__ == "__main__":
    main()
