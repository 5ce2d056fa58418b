"""Markstep: a training compiler for PyTorch."""

import torch.distributed

from markstep.api import compile, explain, install_torch_xla, pause, step, sync  # noqa: A004
from markstep.engine.options import Options
from markstep.engine.report import Report

if torch.distributed.is_available():
    from markstep.distributed import ddp, replicas

    ddp.install()
    replicas.install()

__version__ = "0.1.0"
__all__ = ["Options", "Report", "__version__", "compile", "explain", "install_torch_xla", "pause", "step", "sync"]
