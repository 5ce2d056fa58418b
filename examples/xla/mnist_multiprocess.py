"""Digits, data parallel: one worker per xla device, each with its share of the data and averaged gradients.

The data are scikit-learn's scanned digits if that is installed, and drawn ones otherwise. Run it with
`markstep run examples/xla/mnist_multiprocess.py`.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import torch
import torch.nn.functional as F
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, BATCH = 3, 32
# The bars of a pocket calculator's digits, as rows and columns: top, upper left, upper right, middle, lower left, ...
UPPER, LOWER, MIDDLE = slice(1, 3), slice(4, 6), slice(1, 4)
BARS = ((0, MIDDLE), (UPPER, 0), (UPPER, 4), (3, MIDDLE), (LOWER, 0), (LOWER, 4), (6, MIDDLE))
DIGITS = ("1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111", "1010010", "1111111", "1111011")


def drawn_digits(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy images (count, 1, 8, 8) of the digits at slightly different places, and the digits."""
    noise = torch.Generator().manual_seed(7)
    labels = torch.randint(0, 10, (count,), generator=noise)
    images = 0.3 * torch.rand(count, 1, 8, 8, generator=noise)
    corners = torch.randint(0, 2, (count, 2), generator=noise)
    for image, label, (down, right) in zip(images, labels.tolist(), corners.tolist(), strict=True):
        shape = torch.zeros(7, 5)
        for (row, column), drawn in zip(BARS, DIGITS[label], strict=True):
            shape[row, column] += float(drawn)
        image[0, down : down + 7, right : right + 5] += shape
    return images, labels


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Images and labels for training and for validation."""
    if importlib.util.find_spec("sklearn"):
        from sklearn.datasets import load_digits

        scans = load_digits()
        images, labels = torch.tensor(scans.images, dtype=torch.float32)[:, None] / 16, torch.tensor(scans.target)
    else:
        images, labels = drawn_digits(1280)
    return TensorDataset(images[:1024], labels[:1024]), TensorDataset(images[1024:1280], labels[1024:1280])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.out = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return F.log_softmax(self.out(x.flatten(1)), dim=1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: pl.MpDeviceLoader) -> torch.Tensor:
    """One epoch; returns the loss of its last batch, still on the device."""
    model.train()
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.nll_loss(model(images), labels)
        loss.backward()
        xm.optimizer_step(optimizer)
    return loss.detach()


@torch.no_grad()
def validate(model: nn.Module, batches: pl.MpDeviceLoader) -> float:
    """The share of right answers; one value is read, after all batches."""
    model.eval()
    right, count = torch.zeros((), device=torch_xla.device()), 0
    for images, labels in batches:
        right += (model(images).argmax(1) == labels).sum()
        count += len(labels)
    return right.item() / count


def _mp_fn(index: int, learning_rate: float) -> None:
    torch.manual_seed(0)  # the same first weights everywhere
    device = torch_xla.device()
    training, validation = digits()
    sampler = DistributedSampler(training, num_replicas=xr.world_size(), rank=xr.global_ordinal(), shuffle=True)
    train_batches = pl.MpDeviceLoader(DataLoader(training, BATCH, sampler=sampler, drop_last=True), device)
    held_out = DistributedSampler(validation, num_replicas=xr.world_size(), rank=xr.global_ordinal(), shuffle=False)
    validation_batches = pl.MpDeviceLoader(DataLoader(validation, BATCH, sampler=held_out), device)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate * xr.world_size(), momentum=0.9)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        loss = train(model, optimizer, train_batches)
        accuracy = xm.mesh_reduce("accuracy", validate(model, validation_batches), np.mean)
        xm.master_print(f"epoch {epoch}: accuracy {accuracy:.3f}")
    final = xm.mesh_reduce("loss", loss.item(), np.mean)
    xm.master_print(f"final loss: {final:.6f}")


if __name__ == "__main__":
    xmp.spawn(_mp_fn, args=(0.05,))
