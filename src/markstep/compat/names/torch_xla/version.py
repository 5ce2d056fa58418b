"""`torch_xla.version`: versions."""

import torch

import markstep

__version__ = "2.9.0"
__torch_xla_gitrev__ = "markstep " + markstep.__version__
__torch_gitrev__ = str(torch.version.git_version)

__all__ = ["__torch_gitrev__", "__torch_xla_gitrev__", "__version__"]
