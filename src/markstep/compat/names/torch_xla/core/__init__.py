"""`torch_xla.core`: the old core."""
