"""Text classification with Hugging Face's Trainer on the xla device: which of Python's help pages is a passage from?

A small BERT with random weights reads single characters. Everything comes from this file and Python itself, nothing is
downloaded. Run it with `markstep run examples/xla/trainer_classification.py`; a launcher that starts one process per
device calls `_mp_fn`.
"""

from __future__ import annotations

import tempfile
from pydoc_data import topics
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

LENGTH, CLASSES, PER_CLASS = 64, 4, 48
PADDING, UNKNOWN = 0, 1


def encode(text: str) -> list[int]:
    """Character numbers, padded to one length: every batch has the same shape, so one program serves them all."""
    numbers = [ord(c) - 30 if " " <= c <= "~" else UNKNOWN for c in text[:LENGTH]]
    return numbers + [PADDING] * (LENGTH - len(numbers))


class Passages(Dataset[dict[str, Any]]):
    """Passages of the longest help pages, each with the number of its page."""

    def __init__(self) -> None:
        pages = sorted(topics.topics.values(), key=len)[-CLASSES:]
        self.rows = [(encode(page[i * LENGTH :]), label) for i in range(PER_CLASS) for label, page in enumerate(pages)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, Any]:
        ids = torch.tensor(self.rows[i][0])
        return {"input_ids": ids, "attention_mask": (ids != PADDING).long(), "labels": self.rows[i][1]}


def main() -> None:
    set_seed(0)
    config = BertConfig(
        vocab_size=128, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=LENGTH, num_labels=CLASSES, initializer_range=0.1,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, optim="adamw_torch_xla", learning_rate=3e-3, per_device_train_batch_size=16, num_train_epochs=6,
            dataloader_drop_last=True, logging_steps=8, logging_nan_inf_filter=False, save_strategy="no", report_to=[],
            disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=Passages())
        trainer.train()
        print(f"device: {trainer.args.device}")
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        print("losses:", *losses)
        print(f"final loss: {losses[-1]}")


def _mp_fn(index: int) -> None:
    main()


if __name__ == "__main__":
    main()
