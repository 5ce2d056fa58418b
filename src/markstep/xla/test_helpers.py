"""What torch_xla's example scripts print."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import torch.multiprocessing as mp

from markstep.xla import metrics, metrics_text, runtime


def now(format: str = "%H:%M:%S") -> str:  # noqa: A002
    """The time of day."""
    return datetime.now().strftime(format)


def _spec(device: Any) -> str:
    rank = runtime.global_ordinal()
    return str(device) if runtime.world_size() == 1 else f"{device}/{rank}"


def print_training_update(
    device: Any,
    step: int,
    loss: float,
    rate: float,
    global_rate: float,
    epoch: int | None = None,
    summary_writer: Any = None,
) -> None:
    """Prints one line about a training step: loss, examples per second now and since the beginning."""
    parts = [
        "Training",
        f"Device={_spec(device)}",
        *([f"Epoch={epoch}"] if epoch is not None else []),
        f"Step={step}",
        f"Loss={float(loss):.5f}",
        f"Rate={rate:.2f}",
        f"GlobalRate={global_rate:.2f}",
        f"Time={now()}",
    ]
    print("| " + " ".join(parts), flush=True)
    write_to_summary(summary_writer, dict_to_write={"examples/sec": rate, "average_examples/sec": global_rate})


def print_test_update(device: Any, accuracy: float | None, epoch: int | None = None, step: int | None = None) -> None:
    """Prints one line about a test: accuracy in percent."""
    parts = [
        "Test",
        f"Device={_spec(device)}",
        *([f"Step={step}"] if step is not None else []),
        *([f"Epoch={epoch}"] if epoch is not None else []),
        *([f"Accuracy={accuracy:.2f}"] if accuracy is not None else []),
        f"Time={now()}",
    ]
    print("| " + " ".join(parts), flush=True)


def get_summary_writer(logdir: str | None) -> Any:
    """A TensorBoard writer (package tensorboardX or tensorboard), None without `logdir`."""
    if not logdir:
        return None
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        from torch.utils.tensorboard import SummaryWriter
    writer = SummaryWriter(logdir)
    write_to_summary(writer, 0, {"TensorboardStartTimestamp": time.time()})
    return writer


def write_to_summary(
    summary_writer: Any, global_step: int | None = None, dict_to_write: Any = None, write_xla_metrics: bool = False
) -> None:
    """Writes numbers, and if asked for all metrics, to a TensorBoard writer; does nothing without one."""
    if summary_writer is None:
        return
    values = dict(dict_to_write or {})
    if write_xla_metrics:
        parsed = metrics_text.parse_metrics_report(metrics.metrics_report())
        values.update(parsed)
        values["aten_ops_sum"] = sum(v for name, v in parsed.items() if name.startswith("aten::"))
    for name, value in values.items():
        summary_writer.add_scalar(name, value, global_step)


def close_summary_writer(summary_writer: Any) -> None:
    """Writes and closes a TensorBoard writer, if there is one."""
    if summary_writer is not None:
        summary_writer.flush()
        summary_writer.close()


def mp_test(func: Callable[..., Any]) -> Callable[..., None]:
    """Decorator: the test runs in a process of its own, which must end well."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        process = mp.get_context("fork").Process(target=func, args=args, kwargs=kwargs)
        process.start()
        process.join()
        if process.exitcode:
            raise AssertionError(f"{func.__name__} ended with exit code {process.exitcode}")

    return wrapper


__all__ = [
    "close_summary_writer",
    "get_summary_writer",
    "mp_test",
    "now",
    "print_test_update",
    "print_training_update",
    "write_to_summary",
]
