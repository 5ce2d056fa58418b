"""`torch_xla._dynamo.dynamo_bridge`: torch.compile."""

from markstep.xla.dynamo import extract_compiled_graph
from markstep.xla.legacy import alias_with_buffer_donor_config

__all__ = ["alias_with_buffer_donor_config", "extract_compiled_graph"]
