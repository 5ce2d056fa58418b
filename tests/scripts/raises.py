"""Fails in the middle of a step; what was done before is saved on the way out."""

import sys

import outcome
import torch
from torch import nn
from torch.nn import functional as F


def batch(i: int) -> torch.Tensor:
    return torch.randn(4, 6 if i < 15 else 7)


def train(path: str) -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(6, 6), nn.Linear(6, 2)
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=1e-2)
    losses, hidden = [], []
    try:
        for i in range(20):
            optimizer.zero_grad()
            hidden.append(first(torch.randn(4, 6)).detach().sum())
            loss = F.mse_loss(second(first(batch(i))), torch.zeros(4, 2))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    finally:
        state = [m.state_dict() for m in (first, second, optimizer)]
        outcome.save(path, losses=losses, hidden=hidden, state=state, generator=torch.get_rng_state())


train(sys.argv[1])
