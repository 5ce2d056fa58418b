"""`torch_xla._internal`: private parts."""
