"""Counters and metrics under torch_xla's names, and their reports.

A counter is a number that only grows. A metric is a series of samples: nanoseconds, bytes or plain values. Counters of
operators are taken from the device: `xla::add` for every form of `aten::add`, `aten::nonzero` and the like for operators
whose result the host has to read. Some metrics are counted from the device's operators too, which are not timed one by one:
their number of samples grows, their sum does not, and a report without any time shows the number only. These are LazyTracing
(operators called), EagerOpExecuteTime (operators called in eager mode) and, of TransferToDeviceTime and TensorToData, tensors
made on the device from Python numbers.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from markstep.xla import device, env

# Operators that end the step, because the host needs their result.
HOST_READS = frozenset(
    f"aten::{name}"
    for name in (
        "_local_scalar_dense nonzero masked_select equal _unique _unique2 unique_dim unique_consecutive unique_dim_consecutive "
        "bincount is_nonzero repeat_interleave"
    ).split()
)
_NO_TENSOR = frozenset(f"aten::{n}" for n in ("lift_fresh", "alias", "detach", "copy_"))  # give no new value
_NO_WORK = frozenset(f"aten::{n}" for n in ("lift_fresh", "alias", "detach"))
_COPIES = _NO_WORK | {"aten::_to_copy", "aten::copy_", "aten::_local_scalar_dense"}
_KEPT = 1024  # samples
_PERCENTILES = (0.01, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.99)
_lock = threading.Lock()


@dataclass
class _Metric:
    kind: str
    total: int = 0
    sum: float = 0.0
    samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_KEPT))


_counters: dict[str, int] = {}
_metrics: dict[str, _Metric] = {}
_counted: dict[str, int] = {}  # what of the device's operators is in `_metrics`
_eager = env.flag("XLA_USE_EAGER_DEBUG_MODE")
_reads = 0  # calls of `_to_copy` whose result is on the CPU
_executed = 0  # computations that ExecuteTime is about, of those that the device has counted


def count(name: str, value: int = 1) -> None:
    """Adds to a counter, which is made at first use."""
    with _lock:
        _counters[name] = _counters.get(name, 0) + value


def observe(name: str, value: float, *, kind: str = "time") -> None:
    """Adds one sample to a metric, which is made at first use.

    Args:
        name: of the metric.
        value: nanoseconds ("time"), bytes ("bytes") or a plain number ("value"), see `kind`.
        kind: unit of the metric.
    """
    with _lock:
        _add(name, value, time.time(), kind)


def _add(name: str, value: float, now: float, kind: str) -> None:
    metric = _metrics.get(name)
    if metric is None:
        metric = _metrics[name] = _Metric(kind)
    metric.total += 1
    metric.sum += value
    metric.samples.append((now, float(value)))


def observe_transfer(name: str, start_ns: int, nbytes: int) -> None:
    """A transfer that began at a value of `time.perf_counter_ns` and has ended: "TransferToDeviceTime" or its opposite."""
    taken, now = time.perf_counter_ns() - start_ns, time.time()
    with _lock:
        _add(name, taken, now, "time")
        if name == "TransferToDeviceTime":
            _add("TensorToData", taken, now, "time")
            _add("OutboundData", nbytes, now, "bytes")
        else:
            _add("InboundData", nbytes, now, "bytes")


class _Since(threading.local):
    thread_ns: int | None = None  # this thread's processor time when it last executed something, or asked for the device


_since = _Since()


def begin_executing() -> None:
    """Called when this thread asks for the device."""
    if _since.thread_ns is None:
        _since.thread_ns = time.thread_time_ns()


class Execution:
    """A block in which everything pending is executed, for ExecuteTime.

    Args:
        at_once: the operators of the step, being recorded, ran one by one before: they took, on the CPU, the processor time of
            this thread since its last execution, the Python between them included.
        counts: it is a sample of ExecuteTime.
    """

    def __init__(self, at_once: bool, *, counts: bool = True) -> None:
        self.counts = counts
        self.before = 0
        if at_once and _since.thread_ns is not None:
            self.before = max(time.thread_time_ns() - _since.thread_ns, 0)

    def __enter__(self) -> None:
        self.start = time.perf_counter_ns()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        global _executed
        if self.counts and kind is None:
            observe("ExecuteTime", time.perf_counter_ns() - self.start + self.before)
        _since.thread_ns, _executed = time.thread_time_ns(), _computations()


def count_read() -> None:
    """A call of `_to_copy` gave a tensor of the CPU, not of the device."""
    global _reads
    with _lock:
        _reads += 1


def nothing_to_execute() -> bool:
    """Whether nothing but copies was asked for since the last execution; operators of eager mode execute at once."""
    return _eager or _computations() == _executed


def _computations() -> int:
    return sum(n for name, n in device.op_counts().items() if name.partition(".")[0] not in _COPIES)


def set_eager(enabled: bool) -> None:
    """Whether the operators that follow are those of eager mode."""
    global _eager
    _count_operators()
    _eager = enabled


def _count_operators() -> None:
    """Adds the operators since the last call to the metrics that are counted from them."""
    calls = device.op_counts()
    new = {
        "LazyTracing": sum(calls.values()),
        "EagerOpExecuteTime": sum(n for name, n in calls.items() if name.partition(".")[0] not in _NO_WORK),
        "TensorToData": calls.get("aten::lift_fresh", 0),
        "TransferToDeviceTime": calls.get("aten::lift_fresh", 0),
    }
    with _lock:
        for name, total in new.items():
            more = total - _counted.get(name, 0)
            if more > 0 and (_eager or name != "EagerOpExecuteTime"):
                _metrics.setdefault(name, _Metric("time")).total += more
        _counted.update(new)


def _all_counters() -> dict[str, int]:
    found = dict(_counters)
    created = -_reads
    for name, calls in device.op_counts().items():
        operator = name.partition(".")[0]
        if operator in HOST_READS:
            found[operator] = found.get(operator, 0) + calls
            continue
        in_place = operator.endswith("_") and not operator.endswith("__")
        created += 0 if in_place or operator in _NO_TENSOR else calls
        short = "xla::" + operator.partition("::")[2].removesuffix("_" if in_place else "")
        found[short] = found.get(short, 0) + calls
    if created > 0:
        found["CreateXlaTensor"] = found.get("CreateXlaTensor", 0) + created
    return dict(sorted(found.items()))


def counter_names() -> list[str]:
    """Names of all counters that are not zero."""
    return list(_all_counters())


def counter_value(name: str) -> int | None:
    """A counter's value, None if there is no such counter."""
    return _all_counters().get(name)


def metric_names() -> list[str]:
    """Names of all metrics with at least one sample."""
    _count_operators()
    return sorted(name for name, m in _metrics.items() if m.total)


def metric_data(name: str) -> tuple[int, float, list[tuple[float, float]]] | None:
    """(number of samples, their sum, the last samples as (seconds since 1970, value)); None if there is no such metric."""
    _count_operators()
    with _lock:
        metric = _metrics.get(name)
        return (metric.total, metric.sum, list(metric.samples)) if metric is not None and metric.total else None


def clear_counters() -> None:
    """Forgets all counters, those of operators too."""
    global _executed, _reads
    _count_operators()
    with _lock:
        _counters.clear()
        _counted.clear()
        _executed = _reads = 0
    device.clear_op_counts()


def clear_metrics() -> None:
    """Forgets all metrics."""
    _count_operators()
    with _lock:
        _metrics.clear()


def clear_all() -> None:
    """Forgets all counters and metrics."""
    clear_metrics()
    clear_counters()


def executed_fallback_ops() -> list[str]:
    """Operators that ran on the host: those that read values, such as "aten::nonzero"."""
    return [name for name in _all_counters() if name.startswith("aten::")]


def metrics_report() -> str:
    """All metrics and counters as text."""
    _count_operators()
    with _lock:
        parts = [_metric_text(name, m) for name, m in sorted(_metrics.items()) if m.total]
    return "".join(parts) + "".join(_counter_text(n, v) for n, v in _all_counters().items())


def short_metrics_report(counter_names: Iterable[str] | None = None, metric_names: Iterable[str] | None = None) -> str:
    """The important metrics and counters as text; operators that ran on the host are always in it.

    Args:
        counter_names: which counters; by default CachedCompile, MarkStep and DynamoSyncInputExecuteTime.
        metric_names: which metrics; by default the times of compilation, execution and transfer.
    """
    _count_operators()
    counters = set(counter_names or ("CachedCompile", "MarkStep", "DynamoSyncInputExecuteTime"))
    wanted = set(
        metric_names or ("CompileTime", "ExecuteTime", "ExecuteReplicatedTime", "TransferToDeviceTime", "TransferFromDeviceTime")
    )
    with _lock:
        parts = [_metric_text(name, m) for name, m in sorted(_metrics.items()) if m.total and name in wanted]
    shown = {n: v for n, v in _all_counters().items() if n in counters or n.startswith("aten::")}
    return "".join(parts) + "".join(_counter_text(n, v) for n, v in shown.items())


def _counter_text(name: str, value: int) -> str:
    return f"Counter: {name}\n  Value: {value}\n"


def _metric_text(name: str, metric: _Metric) -> str:
    def show(value: float) -> str:
        return _duration(value) if metric.kind == "time" else _size(value) if metric.kind == "bytes" else f"{value:.2f}"

    lines = [f"Metric: {name}", f"  TotalSamples: {metric.total}"]
    samples = list(metric.samples)
    if not samples:
        return "\n".join(lines) + "\n"
    lines.append(f"  Accumulator: {show(metric.sum)}")
    span = samples[-1][0] - samples[0][0]
    if span > 0:
        if metric.kind != "value":
            rate = sum(v for _, v in samples) / span
            lines.append(f"  ValueRate: {show(rate)} / second")
        lines.append(f"  Rate: {len(samples) / span:.6g} / second")
    values = sorted(v for _, v in samples)
    points = (f"{100 * p:g}%={show(values[min(int(p * len(values)), len(values) - 1)])}" for p in _PERCENTILES)
    lines.append("  Percentiles: " + "; ".join(points))
    return "\n".join(lines) + "\n"


def _duration(ns: float) -> str:
    units: Sequence[tuple[str, int, int]] = (
        ("d", 86_400_000_000_000, 1),
        ("h", 3_600_000_000_000, 2),
        ("m", 60_000_000_000, 2),
        ("s", 1_000_000_000, 2),
        ("ms", 1_000_000, 3),
    )
    text = ""
    for unit, size, width in units:
        if text or ns >= size:
            text += f"{int(ns // size):0{width}d}{unit}" if text else f"{int(ns // size)}{unit}"
            ns %= size
    micros = ns / 1000
    return text + (f"{micros:07.3f}us" if text else f"{micros:.3f}us")


def _size(value: float) -> str:
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if value < 1024 or unit == "TB":
            break
        value /= 1024
    return f"{value:.2f}{unit}"
