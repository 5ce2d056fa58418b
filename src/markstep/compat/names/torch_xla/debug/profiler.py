"""`torch_xla.debug.profiler`: traces."""

from markstep.xla.profiler import (
    StepTrace,
    Trace,
    get_tracer_marked_step,
    set_tracer_marked_step,
    start_server,
    start_trace,
    stop_trace,
    trace,
    trace_detached,
    trace_me,
)

__all__ = [
    "StepTrace",
    "Trace",
    "get_tracer_marked_step",
    "set_tracer_marked_step",
    "start_server",
    "start_trace",
    "stop_trace",
    "trace",
    "trace_detached",
    "trace_me",
]
