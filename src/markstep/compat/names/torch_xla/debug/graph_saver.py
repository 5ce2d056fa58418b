"""`torch_xla.debug.graph_saver`: graphs of tensors: not supported."""

from markstep.xla.notices import unsupported

_INSTEAD = "markstep.explain() lists what is compiled"
save_tensors_graph = unsupported("debug.graph_saver.save_tensors_graph", _INSTEAD)

__all__ = ["save_tensors_graph"]
