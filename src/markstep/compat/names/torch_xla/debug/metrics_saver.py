"""`torch_xla.debug.metrics_saver`: metrics in a file."""

from markstep.xla.metrics_file import save_metrics

__all__ = ["save_metrics"]
