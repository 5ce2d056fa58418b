"""`torch_xla._internal.rendezvous`: where processes meet; they do so without it."""
