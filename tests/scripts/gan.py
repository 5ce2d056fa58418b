"""Two optimizers in turn, an exponential moving average, and a few ways of reading values."""

import copy
import sys

import outcome
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
average = copy.deepcopy(generator)
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.99))
one, zero = torch.ones(16, 1), torch.zeros(16, 1)
history: list[tuple[float, float]] = []
samples: list[torch.Tensor] = []
for step in range(40):
    angle = torch.rand(16) * 6.283
    real = torch.stack([angle.cos(), angle.sin()], 1)
    fake = generator(torch.randn(16, 4))
    opt_c.zero_grad()
    loss_c = F.binary_cross_entropy_with_logits(critic(real), one)
    loss_c = loss_c + F.binary_cross_entropy_with_logits(critic(fake.detach()), zero)
    loss_c.backward()
    opt_c.step()
    opt_g.zero_grad()
    loss_g = F.binary_cross_entropy_with_logits(critic(fake), one)
    loss_g.backward()
    opt_g.step()
    with torch.no_grad():
        for p, q in zip(average.parameters(), generator.parameters(), strict=True):
            p.lerp_(q, 0.1)
    history.append((float(loss_c), loss_g.item()))
    if step % 10 == 9:
        print(f"step {step}: {loss_c:.4f} {loss_g:.4f}", flush=True)
        samples.append(torch.from_numpy(average(torch.ones(2, 4)).detach().numpy().copy()))
outcome.save(sys.argv[1], history=history, samples=samples, models=[m.state_dict() for m in (generator, critic, average)])
