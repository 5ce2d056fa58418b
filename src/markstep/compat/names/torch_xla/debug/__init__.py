"""`torch_xla.debug`: debugging."""
