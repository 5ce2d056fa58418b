"""Lightning: automatic optimization (a closure given to the optimizer), validation, logging, clipping, checkpoints on or off."""

import sys
import tempfile
import warnings
from typing import Any

import lightning as L
import outcome
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore", ".*does not have many workers.*")


class Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 3))
        self.seen: list[Any] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.seen.append(loss.detach())
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        out = self.net(batch[0])
        self.log("val_loss", F.cross_entropy(out, batch[1]))
        self.log("val_accuracy", (out.argmax(-1) == batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]


def fit(folder: str, checkpoint: bool, **settings: Any) -> dict[str, Any]:
    L.seed_everything(0, verbose=False)
    data = TensorDataset(torch.randn(64, 8), torch.randint(3, (64,)))
    model = Classifier()
    trainer = L.Trainer(
        max_epochs=4, accelerator="cpu", default_root_dir=folder, logger=False, enable_progress_bar=False,
        enable_model_summary=False, gradient_clip_val=1.0, enable_checkpointing=checkpoint,
        callbacks=[ModelCheckpoint(folder, monitor="val_loss", save_last=True)] if checkpoint else [], **settings,
    )  # fmt: skip
    trainer.fit(model, DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=16))
    saved = torch.load(f"{folder}/last.ckpt", weights_only=False)["state_dict"] if checkpoint else {}
    metrics = {k: v for k, v in trainer.callback_metrics.items()}
    return {"seen": model.seen, "metrics": metrics, "model": model.state_dict(), "saved": saved}


with tempfile.TemporaryDirectory() as folder:
    results = {"plain": fit(folder, False), "saving": fit(folder, True, accumulate_grad_batches=2, precision="bf16-mixed")}
outcome.save(sys.argv[1], **results)
