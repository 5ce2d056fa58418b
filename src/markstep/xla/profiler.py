"""torch_xla's profiler functions, on torch.profiler: traces are files for Perfetto or chrome://tracing."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch

from markstep.xla import model, scopes, steps

F = TypeVar("F", bound=Callable[..., Any])


class _Local(threading.local):
    marked = False


_local = _Local()
_running: tuple[Any, Path] | None = None


def set_tracer_marked_step(value: bool) -> None:
    """Notes whether a `StepTrace` has just ended the step, so that the loader need not."""
    _local.marked = value


def get_tracer_marked_step() -> bool:
    """Whether a `StepTrace` has just ended the step."""
    return _local.marked


class Trace:
    """A `with` block that shows in traces under a name.

    The step may not end inside it, `torch_xla.sync()` says.

    Args:
        name: the name.
        **kwargs: shown with it.
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        self.name = name
        self.scope = name if not kwargs else f"{name}#{','.join(f'{k}={v}' for k, v in kwargs.items())}#"

    def __enter__(self) -> Trace:
        self._record = torch.profiler.record_function(self.scope)
        self._record.__enter__()
        scopes.enter(self.name)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        scopes.leave()
        self._record.__exit__(kind, error, trace)


class StepTrace(Trace):
    """A `with` block that is one training step: the step ends with it, and a loader does not end it again."""

    def __enter__(self) -> StepTrace:
        set_tracer_marked_step(True)
        super().__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            steps.end_step("torch_xla.sync when exiting a profiler StepTrace region")
        super().__exit__(kind, error, trace)


def trace_me(scope: str) -> Callable[[F], F]:
    """Decorator: calls of the function show in traces under a name."""

    def decorate(fn: F) -> F:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with Trace(scope):
                return fn(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorate


def start_trace(log_dir: str | os.PathLike[str]) -> None:
    """Starts a trace of this process, which `stop_trace` writes to a directory.

    Raises:
        RuntimeError: a trace is running.
    """
    global _running
    if _running is not None:
        raise RuntimeError("a trace is running already: call stop_trace first")
    profile = torch.profiler.profile()
    profile.start()
    _running = profile, Path(log_dir)


def stop_trace() -> None:
    """Ends the trace and writes it.

    Raises:
        RuntimeError: no trace is running.
    """
    global _running
    if _running is None:
        raise RuntimeError("no trace is running: call start_trace first")
    (profile, folder), _running = _running, None
    profile.stop()
    folder.mkdir(parents=True, exist_ok=True)
    profile.export_chrome_trace(str(folder / f"{os.getpid()}.trace.json"))


class ProfilerServer:
    """Stands for the profiling server of a process; see `start_server`."""

    def __init__(self, port: int) -> None:
        self.port = port


def start_server(port: int, only_on_master: bool = True) -> ProfilerServer | None:
    """Notes that the program can be profiled: `trace` in the same process works then. Nothing listens on the port.

    Returns:
        An object that stands for the server; None in processes that would have none.
    """
    if only_on_master and not model.is_master_ordinal():
        return None
    return ProfilerServer(port)


def trace(
    service_addr: str,
    logdir: str,
    duration_ms: int = 1000,
    num_tracing_attempts: int = 3,
    host_tracer_level: int = 2,
    device_tracer_level: int = 1,
    delay_ms: int = 0,
    timeout_s: int = 120,
    interval_s: int = 5,
) -> None:
    """Traces this process for a time, whatever its threads do, and writes the trace to a directory.

    Args:
        service_addr: must be of this machine ("localhost:9012"): there is no profiling server.
        logdir: where to write.
        duration_ms: milliseconds.
        delay_ms: milliseconds to wait before.
        num_tracing_attempts: has no effect, like the arguments that follow.
        host_tracer_level: has no effect.
        device_tracer_level: has no effect.
        timeout_s: has no effect.
        interval_s: has no effect.

    Raises:
        NotImplementedError: another machine is to be traced.
    """
    if service_addr.rpartition(":")[0] not in ("localhost", "127.0.0.1", "[::1]", "0.0.0.0"):
        raise NotImplementedError(
            f"{service_addr} is not this machine, and there is no profiling server: call start_trace and stop_trace there"
        )
    pause = threading.Event()
    pause.wait(delay_ms / 1000)
    activities = None
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with torch.profiler.profile(activities=activities, experimental_config=config) as profile:
        pause.wait(duration_ms / 1000)
    Path(logdir).mkdir(parents=True, exist_ok=True)
    profile.export_chrome_trace(str(Path(logdir) / f"{os.getpid()}.trace.json"))


def trace_detached(*args: Any, **kwargs: Any) -> None:
    """`trace` in a thread of its own, while the program goes on."""
    threading.Thread(target=trace, args=args, kwargs=kwargs, name="trace").start()
