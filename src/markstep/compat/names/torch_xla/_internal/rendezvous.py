"""`torch_xla._internal.rendezvous`: where processes meet."""

from markstep.xla.collectives import rendezvous

__all__ = ["rendezvous"]
