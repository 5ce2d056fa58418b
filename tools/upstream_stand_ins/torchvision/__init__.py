"""What torch_xla's example scripts use of torchvision when they train on made-up data."""

from . import datasets, models, transforms

__all__ = ["datasets", "models", "transforms"]
