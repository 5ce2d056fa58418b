"""A native training loop with mixed precision on the xla device, in the way of SageMaker Training Compiler's scripts.

Compared with a CUDA script: the device, autocast, GradScaler and AdamW come from torch_xla, the loader is an MpDeviceLoader
(it ends the steps), gradients are averaged between processes before they are unscaled, printing goes through a step closure,
saving through xm.save, and `_mp_fn` is the entry. Run it with `markstep run examples/xla/native_amp.py`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from pydoc_data import topics

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch_xla.amp import GradScaler, autocast, syncfree

LENGTH, WIDTH, BATCH, STEPS = 32, 48, 8, 24


class NextCharacter(nn.Module):
    """Characters (batch, length) to logits of the ones that follow, with one causal transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(128, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(WIDTH, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)
        self.register_buffer("places", torch.arange(LENGTH), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(self.characters(x) + self.positions(self.places), src_mask=self.mask))


def text() -> TensorDataset:
    """Passages of Python's help pages, one character longer than what the model reads."""
    characters = torch.tensor([min(ord(c), 127) for c in topics.topics["assignment"]])
    return TensorDataset(characters.unfold(0, LENGTH + 1, LENGTH)[: BATCH * STEPS].contiguous())


def report(step: int, loss: torch.Tensor, seen: list[float]) -> None:
    seen.append(loss.item())
    xm.master_print(f"step {step}: loss {seen[-1]:.4f}")


def main() -> None:
    torch.manual_seed(0)
    device = xm.xla_device()
    sampler = DistributedSampler(text(), num_replicas=xm.xrt_world_size(), rank=xm.get_ordinal(), shuffle=True, seed=0)
    batches = pl.MpDeviceLoader(DataLoader(text(), batch_size=BATCH, sampler=sampler, drop_last=True), device)
    model = NextCharacter().to(device)
    optimizer = syncfree.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    scaler = GradScaler()
    criterion = nn.CrossEntropyLoss()
    seen: list[float] = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step, (passage,) in enumerate(batches):
            optimizer.zero_grad()
            with autocast(device):
                logits = model(passage[:, :-1])
                loss = criterion(logits.flatten(0, 1).float(), passage[:, 1:].flatten())
            scaler.scale(loss).backward()
            gradients = xm._fetch_gradients(optimizer)
            xm.all_reduce(xm.REDUCE_SUM, gradients, scale=1.0 / xm.xrt_world_size())
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            if step % 8 == 7:
                xm.add_step_closure(report, args=(epoch * STEPS + step, loss.detach(), seen))
    torch_xla.sync()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt"
        xm.save(model.state_dict(), str(path))
        saved = torch.load(path)
        assert all(not v.is_floating_point() or v.isfinite().all() for v in saved.values())
    xm.master_print(f"final loss: {seen[-1]:.6f}")


def _mp_fn(index: int) -> None:
    main()


if __name__ == "__main__":
    _mp_fn(0)
