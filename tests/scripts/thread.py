"""Threads that train models of their own beside the main one, one of them longer than the script's last line."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import outcome
import torch
from torch import nn
from torch.nn import functional as F


def train(seed: int) -> tuple[list[torch.Tensor], nn.Module]:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(25):
        loss = F.cross_entropy(model(torch.randn(8, 5, generator=generator)), torch.arange(8) % 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach() * 2)  # the last one is computed after the last step
    return losses, model


results: dict[int, tuple[list[torch.Tensor], nn.Module]] = {}
pool = ThreadPoolExecutor(1)
future = pool.submit(train, 3)
worker = threading.Thread(target=lambda: results.update({1: train(1)}))
worker.start()
results[2] = train(2)
worker.join()
results[3] = future.result()


def late() -> None:
    threading.main_thread().join()
    results[4] = train(4)
    outcome.save(sys.argv[1], **{f"thread{k}": (losses, m.state_dict()) for k, (losses, m) in sorted(results.items())})


threading.Thread(target=late).start()
