"""`torch_xla.debug.metrics_compare_utils`: reading and comparing metrics reports."""

from markstep.xla.metrics_text import compare_metrics, get_data_points_from_metrics_reports, parse_metrics_report

__all__ = ["compare_metrics", "get_data_points_from_metrics_reports", "parse_metrics_report"]
