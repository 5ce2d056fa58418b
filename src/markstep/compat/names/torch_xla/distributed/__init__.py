"""`torch_xla.distributed`: several processes."""
