"""Counters and metrics under torch_xla's names, and the text of their reports."""

import torch

from markstep.xla import metrics, metrics_text, steps


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
