"""What PyTorch's own backend "openxla" of torch.compile asks for.

The graph runs operator by operator on the device, which compiles what repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def extract_compiled_graph(xla_model: torch.fx.GraphModule, xla_args: Any) -> Callable[..., Any]:
    """What a graph that TorchDynamo has captured runs as: itself."""
    return xla_model.forward
