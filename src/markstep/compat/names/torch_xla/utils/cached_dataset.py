"""`torch_xla.utils.cached_dataset`: samples kept in files."""

from markstep.xla.utils import CachedDataset

__all__ = ["CachedDataset"]
