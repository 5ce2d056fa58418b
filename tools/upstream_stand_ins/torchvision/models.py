"""ResNet-50 with random weights.

Source: He et al., Deep Residual Learning for Image Recognition, 2015, table 1.
"""

from __future__ import annotations

import torch
from torch import nn


def _normalised(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class _Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.narrow = _normalised(inputs, width, 1)
        self.spatial = _normalised(width, width, 3, stride)
        self.wide = _normalised(width, 4 * width, 1)
        changes = inputs != 4 * width or stride != 1
        self.shortcut = _normalised(inputs, 4 * width, 1, stride) if changes else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.spatial(self.narrow(x).relu()).relu()
        return (self.wide(y) + self.shortcut(x)).relu()


def resnet50() -> nn.Sequential:
    """Images (batch, 3, height, width) to (batch, 1000) logits."""
    layers: list[nn.Module] = [_normalised(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    inputs = 64
    for stage, (blocks, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)]):
        for i in range(blocks):
            layers.append(_Bottleneck(inputs, width, 2 if stage and not i else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))
