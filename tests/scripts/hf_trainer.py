"""Hugging Face Trainer: evaluation, logging, accumulation, clipping, a checkpoint, and a second run that resumes from it."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import outcome
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed


class Sentences(torch.utils.data.Dataset[Any]):
    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(count)
        self.ids = torch.randint(4, 60, (count, 12), generator=generator)
        self.lengths = torch.randint(6, 13, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, Any]:
        mask = (torch.arange(12) < self.lengths[i]).long()
        return {"input_ids": self.ids[i] * mask, "attention_mask": mask, "labels": int(self.ids[i, 0]) % 2}


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def trainer(folder: str, **changes: Any) -> Trainer:
    set_seed(0)
    config = BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16,
    )  # fmt: skip
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 4, "per_device_eval_batch_size": 8, "gradient_accumulation_steps": 2,
        "max_grad_norm": 1.0, "learning_rate": 1e-3, "num_train_epochs": 3, "logging_steps": 5, "eval_strategy": "epoch",
        "save_strategy": "steps", "save_steps": 16, "report_to": [], "disable_tqdm": True, "warmup_steps": 4, "use_cpu": True,
    }  # fmt: skip
    return Trainer(
        model=BertForSequenceClassification(config),
        args=TrainingArguments(folder, **{**settings, **changes}),
        train_dataset=Sentences(96),
        eval_dataset=Sentences(24),
        compute_metrics=accuracy,
    )


def figures(done: Trainer) -> dict[str, Any]:
    timing = ("runtime", "per_second")
    logs = [{k: v for k, v in entry.items() if not k.endswith(timing)} for entry in done.state.log_history]
    assert done.optimizer is not None
    return {"logs": logs, "model": done.model.state_dict(), "optimizer": done.optimizer.state_dict()}


with tempfile.TemporaryDirectory() as folder:
    first = trainer(folder)
    first.train()
    results = {"first": figures(first)}
    if "--quick" not in sys.argv:
        assert (Path(folder) / "checkpoint-16").is_dir()
        second = trainer(folder, save_strategy="no")
        second.train(resume_from_checkpoint=f"{folder}/checkpoint-16")
        results["second"] = figures(second)
        results["predictions"] = torch.from_numpy(second.predict(Sentences(24)).predictions)
outcome.save(sys.argv[1], **results)
