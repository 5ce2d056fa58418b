"""Compilation off the training thread."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

from markstep.codegen.cache import Store, key_of, key_parts
from markstep.codegen.plan import make_plan
from markstep.codegen.recipe import Recipe
from markstep.codegen.worker import receive, send
from markstep.engine.options import Options
from markstep.engine.report import ProgramReport, current
from markstep.record.program import Program

log = logging.getLogger("markstep")
_lock = threading.Lock()
_child: subprocess.Popen[bytes] | None = None
_exiting = False  # the interpreter ends: what is still being compiled has no use
_scratch: str | None = None  # where the child works, if it cannot be below the cache directory


class CompilationFailed(RuntimeError):
    """The child process could not compile a program."""


class Job:
    """One program on its way to an executable.

    Attributes:
        failed: it cannot be compiled; the warning has been given.
    """

    def __init__(self, program: Program, options: Options, figures: ProgramReport) -> None:
        self.program, self.options, self.figures = program, options, figures
        self.failed = False
        self._executable: Any = None
        self._threads = torch.get_num_threads()
        self._thread = threading.Thread(target=self._run, daemon=True, name="markstep-compile")
        self._thread.start()

    def poll(self) -> Any:
        """The executable, or None while it is not ready (or when it never will be: see `failed`)."""
        return self._executable

    def wait(self) -> None:
        """Blocks until the job is done, one way or the other."""
        self._thread.join()

    def _run(self) -> None:
        start = time.perf_counter()
        try:
            plan = make_plan(self.program, self.options.rng)
            if not any(p.graph for p in plan.pieces):
                raise CompilationFailed("nothing in it can be compiled")
            executable, why = self._obtain()
        except Exception as error:
            self.failed = True
            if _exiting:
                return
            text = str(error).strip().splitlines()
            reason = text[0] if text else type(error).__name__
            self.figures.state = f"eager, because it does not compile: {reason}"
            current().warnings.append(f"{self.figures.name} stays eager: {reason}")
            log.warning(
                "%s (%d calls, from %s) stays eager: %s",
                self.figures.name,
                self.figures.calls,
                self.figures.source,
                reason,
            )
            log.debug("the whole message", exc_info=error)
            return
        self.figures.compile_s = time.perf_counter() - start
        self.figures.rewrites = executable.rewrites
        log.info(
            "%s (%d calls, from %s): %s in %.1f s",
            self.figures.name,
            self.figures.calls,
            self.figures.source,
            why,
            self.figures.compile_s,
        )
        self._executable = executable

    def _obtain(self) -> tuple[Any, str]:
        from markstep.codegen.build import load_program

        program, recipe = self.program, Recipe.of(self.options)
        cache_dir = self.options.prepared_cache_dir()
        store = Store(cache_dir)
        parts = key_parts(program, recipe) | {"threads": str(self._threads)}
        key = key_of(parts)
        folder = store.find(key)
        if folder is not None:
            try:
                executable = load_program(program, recipe, store, folder)
                self.figures.cached = True
                return executable, "loaded from the cache"
            except Exception as error:  # whatever is wrong with an entry, it can be made again
                log.info("a cached program does not load (%s) and is compiled again", error)
                shutil.rmtree(folder, ignore_errors=True)
        differs = store.nearest(parts)
        request = {
            "cache_dir": str(cache_dir),
            "threads": self._threads,
            "compilers": _compilers(),
            "recipe": recipe,
            "program": pickle.dumps(program),
        }
        answer = _ask(request)
        if "error" in answer:
            log.debug("the compiler's message: %s", answer["trace"])
            raise CompilationFailed(answer["error"])
        folder = store.find(answer["key"])
        if folder is None or answer["key"] != key:
            raise CompilationFailed("the compiled program was not found in the cache directory")
        return load_program(
            program, recipe, store, folder
        ), f"compiled (a cached one differs in {differs})" if differs else "compiled"


def _ask(request: dict[str, Any]) -> dict[str, Any]:
    """Sends a request to the child process, which is started when there is none."""
    global _child
    with _lock:
        if _child is None or _child.poll() is not None:
            _child = _start(Path(request["cache_dir"]))
        assert _child.stdin is not None and _child.stdout is not None
        try:
            send(_child.stdin, request)  # type: ignore[arg-type]
            answer: dict[str, Any] = receive(_child.stdout)  # type: ignore[arg-type]
        except (EOFError, OSError) as error:
            code = _end(_child)
            _child = None
            raise CompilationFailed(f"the compiling process ended with status {code}") from error
        return answer


def _compilers() -> int:
    """How many C++ or Triton compilers run side by side."""
    return int(os.environ.get("TORCHINDUCTOR_COMPILE_THREADS") or os.cpu_count() or 1)


def _start(cache_dir: Path) -> subprocess.Popen[bytes]:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)]))
    if not torch.cuda.is_available():
        # No processes of TorchInductor's own, which only Triton needs; see `_compilers`.
        environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    environment |= {"MARKSTEP": "0", "TORCHINDUCTOR_CACHE_DIR": _working_folder(cache_dir)}
    log_file = os.open(cache_dir / "compiler.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        # A process group of its own, so that Ctrl-C reaches the training only; not a session of its own: Linux gives every
        # session an equal share of the processors (autogroup), however low its priority.
        child = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "markstep.codegen.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log_file, env=environment, process_group=0,
        )  # fmt: skip
    finally:
        os.close(log_file)
    atexit.register(_stop_at_exit)
    return child


def _working_folder(cache_dir: Path) -> str:
    """Where TorchInductor may write: it takes its compiler's command apart at spaces, so its paths must not hold any."""
    global _scratch
    folder = str(cache_dir / "inductor")
    if re.fullmatch(r"[\w./+@%=:,~-]+", folder):
        return folder
    _scratch = tempfile.mkdtemp(prefix="markstep-")
    return _scratch


def stop() -> None:
    """Ends the compiling process, if there is one; the next request starts another."""
    global _child
    if _child is not None:
        _end(_child)
    _child = None


def _stop_at_exit() -> None:
    global _exiting
    _exiting = True
    stop()


def _end(child: subprocess.Popen[bytes]) -> int:
    global _scratch
    child.kill()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    status = child.wait()
    if _scratch is not None:
        shutil.rmtree(_scratch, ignore_errors=True)
        _scratch = None
    return status
