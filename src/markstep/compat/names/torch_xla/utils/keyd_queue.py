"""`torch_xla.utils.keyd_queue`: queues."""

from markstep.xla.queues import KeydQueue, Queue

__all__ = ["KeydQueue", "Queue"]
