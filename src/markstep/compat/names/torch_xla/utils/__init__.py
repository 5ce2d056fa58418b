"""`torch_xla.utils`: helpers."""
