"""Hugging Face Accelerate: prepare, accumulate, backward, clipping, gather_for_metrics, saving and loading the state."""

import sys
import tempfile

import outcome
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

set_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16", cpu=True)
data = TensorDataset(torch.randn(56, 8), torch.randint(3, (56,)))
model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
loader, test_loader = DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=10)
model, optimizer, loader, test_loader, schedule = accelerator.prepare(model, optimizer, loader, test_loader, schedule)
losses, norms, scores = [], [], []
with tempfile.TemporaryDirectory() as folder:
    for epoch in range(6):
        model.train()
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norms.append(accelerator.clip_grad_norm_(model.parameters(), 1.0))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather(loss.detach()))
        model.eval()
        hits = []
        for x, y in test_loader:
            with torch.inference_mode():
                out = model(x).argmax(-1)
            hits.append(accelerator.gather_for_metrics((out == y).float()))
        scores.append(torch.cat(hits).mean().item())
        accelerator.print(f"epoch {epoch}: {scores[-1]:.3f}")
        if epoch == 2:
            accelerator.save_state(folder)
        if epoch == 4:
            accelerator.load_state(folder)
outcome.save(
    sys.argv[1], losses=losses, norms=norms, scores=scores, optimizer=optimizer.state_dict(),
    model=accelerator.unwrap_model(model).state_dict(),
)  # fmt: skip
