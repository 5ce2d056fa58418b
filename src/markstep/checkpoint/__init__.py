"""Checkpoints of a training: atomic, complete or not there, and readable by plain torch."""

from markstep.checkpoint.errors import CheckpointError
from markstep.checkpoint.loader import ResumableLoader
from markstep.checkpoint.loading import Restored
from markstep.checkpoint.manager import Checkpoints, load, save
from markstep.checkpoint.weights import LoadedWeights, load_weights

__all__ = ["CheckpointError", "Checkpoints", "LoadedWeights", "ResumableLoader", "Restored", "load", "load_weights", "save"]
