"""An ordinary training script: shuffled batches, evaluation after each epoch, schedule, clipping, checkpoints, resuming."""

import argparse
import os
from pathlib import Path
from typing import Any

import outcome
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, random_split


class Points(Dataset[Any]):
    """Items are computed, and augmented, when they are loaded."""

    def __len__(self) -> int:
        return 90

    def __getitem__(self, i: int) -> Any:
        x = torch.arange(8).mul(i + 1).sin() + 0.01 * torch.randn(8)
        return x, i % 3


def evaluate(model: nn.Module, loader: DataLoader[Any]) -> tuple[float, float]:
    model.eval()
    loss, correct, count = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            out = model(x)
            loss += F.cross_entropy(out, y, reduction="sum").item()
            correct += (out.argmax(1) == y).sum().item()
            count += len(y)
    model.train()
    return loss / count, correct / count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(0)
    train, held_out = random_split(Points(), [70, 20])
    workers = args.workers
    loader = DataLoader(train, batch_size=8, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    test_loader = DataLoader(held_out, batch_size=10)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=8 * 9)
    checkpoint = Path(args.out + ".ckpt")
    losses, norms, metrics = [], [], []
    for epoch in range(8):
        if epoch == 6:
            saved = torch.load(checkpoint)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        running = torch.zeros(())
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
            running += loss.detach()
        metrics.append((running.item() / len(loader), *evaluate(model, test_loader), schedule.get_last_lr()))
        print(f"epoch {epoch}: loss {metrics[-1][0]:.4f}, accuracy {metrics[-1][2]:.3f}", flush=True)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)
    os.remove(checkpoint)
    outcome.save(
        args.out, losses=losses, norms=norms, metrics=metrics, model=model.state_dict(), optimizer=optimizer.state_dict()
    )


if __name__ == "__main__":
    main()
