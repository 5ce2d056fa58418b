"""Counters and metrics under torch_xla's names, and the text of their reports."""

import time

import torch

from markstep.xla import eager, metrics, metrics_text, runtime, steps


def test_counters_of_operators_and_steps() -> None:
    metrics.clear_all()
    x = torch.ones(2, device="xla")
    x += 2
    steps.sync()
    assert metrics.counter_value("xla::add") == metrics.counter_value("MarkStep") == 1
    assert metrics.executed_fallback_ops() == []
    x[0].item()
    assert metrics.executed_fallback_ops() == ["aten::_local_scalar_dense"]
    metrics.clear_all()
    assert metrics.counter_names() == metrics.metric_names() == []
    assert metrics.counter_value("xla::add") is None and metrics.metric_data("ExecuteTime") is None


def test_the_reports() -> None:
    metrics.clear_all()
    metrics.observe("CompileTime", 62_003_004_005)
    metrics.observe("Sizes", 2048, kind="bytes")
    metrics.count("CachedCompile", 3)
    report = metrics.metrics_report()
    assert report.startswith("Metric: CompileTime\n  TotalSamples: 1\n  Accumulator: 01m02s003ms004.005us\n".replace("01m", "1m"))
    assert "Counter: CachedCompile\n  Value: 3\n" in report and "Accumulator: 2.00KB" in report
    assert "Sizes" not in metrics.short_metrics_report()
    parsed = metrics_text.parse_metrics_report(report)
    assert parsed["CachedCompile"] == 3 and parsed["Sizes__Accumulator_bytes"] == 2048
    assert abs(parsed["CompileTime__Percentile_50_sec"] - 62.003004005) < 1e-9
    metrics.clear_all()


def test_transfers_and_executions() -> None:
    steps.sync()
    metrics.clear_all()
    x = torch.ones(8).to("xla")
    assert metrics.metric_data("TransferToDeviceTime")[:2] > (1, 0) and metrics.metric_data("OutboundData")[:2] == (1, 32)
    torch.tensor(2, device="xla")
    assert metrics.metric_data("TransferToDeviceTime")[0] == metrics.metric_data("TensorToData")[0] == 2
    y = x + 1
    for _ in range(2):
        y.cpu()
    assert metrics.counter_value("CreateXlaTensor") == 3  # not those of the CPU
    assert metrics.metric_data("InboundData")[:2] == (2, 64) and metrics.metric_data("ExecuteTime")[0] == 1
    steps.sync()
    assert metrics.metric_data("ExecuteTime")[0] == 2


def test_metrics_that_are_only_counted() -> None:
    metrics.clear_all()
    x = torch.ones(8, device="xla") + 1
    traced = metrics.metric_data("LazyTracing")
    assert traced == (2, 0.0, [])
    assert metrics.metrics_report().startswith("Metric: LazyTracing\n  TotalSamples: 2\nCounter: ")
    metrics.clear_metrics()
    assert metrics.metric_names() == []
    with eager.eager_mode_context(True):
        x += 1
        metrics.clear_counters()  # has nothing to do with metrics
        x += 1
        steps.sync()
    x += 1
    assert metrics.metric_data("EagerOpExecuteTime")[0] == 2 and metrics.metric_data("LazyTracing")[0] == 3
    assert metrics.metric_data("ExecuteTime") is None


def test_execution_has_the_operators_of_a_step_that_is_recorded() -> None:
    runtime.device()
    steps.sync()
    metrics.clear_all()
    start = time.thread_time_ns()
    torch.randn(2_000_000, device="xla").sort()
    used = time.thread_time_ns() - start
    steps.sync()
    assert metrics.metric_data("ExecuteTime")[1] >= used
