"""`torch_xla.amp.autocast_mode`: mixed precision."""

from functools import partial

import torch

from markstep.xla.amp import autocast

custom_fwd = partial(torch.amp.custom_fwd, device_type="xla")
custom_bwd = partial(torch.amp.custom_bwd, device_type="xla")

__all__ = ["autocast", "custom_bwd", "custom_fwd"]
