"""Batches to train on: English text that comes with Python (the topics of its `help`), and images."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pydoc_data.topics import topics
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from bench.models import Case

Batch = dict[str, Tensor]
_UNKNOWN, _MASK, _SPECIAL = 1, 2, 5  # the first five numbers are no words: padding, unknown, mask, begin, end
_LABELS_IGNORED = -100


@cache
def _words() -> list[str]:
    return re.findall(r"\w+|[^\w\s]", "\n".join(topics[name] for name in sorted(topics)))


@cache
def tokens(vocabulary: int) -> Tensor:
    """The text as numbers, int64 of shape (words,): the most frequent words have the smallest numbers."""
    ranked = [word for word, _ in Counter(_words()).most_common(vocabulary - _SPECIAL)]
    number = {word: i + _SPECIAL for i, word in enumerate(ranked)}
    return torch.tensor([number.get(word, _UNKNOWN) for word in _words()])


def _pieces(case: Case, length: int, generator: torch.Generator) -> Tensor:
    """Random pieces of the text, int64 of shape (batch, length)."""
    text = tokens(case.vocabulary)
    starts = torch.randint(len(text) - length, (case.batch,), generator=generator)
    return torch.stack([text[s : s + length] for s in starts.tolist()])


def _masked(case: Case, generator: torch.Generator) -> Batch:
    """BERT's task: 15 % of the words are to be guessed; of those 80 % are masked and 10 % replaced."""
    labels = _pieces(case, case.size, generator)
    chance = torch.rand(labels.shape, generator=generator)
    other = torch.randint(_SPECIAL, case.vocabulary, labels.shape, generator=generator)
    inputs = torch.where(chance < 0.12, _MASK, torch.where(chance < 0.135, other, labels))
    labels = torch.where(chance < 0.15, labels, _LABELS_IGNORED)
    return {"input_ids": inputs, "attention_mask": torch.ones_like(inputs), "labels": labels}


def _causal(case: Case, generator: torch.Generator) -> Batch:
    inputs = _pieces(case, case.size, generator)
    return {"input_ids": inputs, "attention_mask": torch.ones_like(inputs), "labels": inputs.clone()}


def _continued(case: Case, generator: torch.Generator) -> Batch:
    """For encoder and decoder: the text goes in, its continuation of the same length comes out."""
    inputs, labels = _pieces(case, 2 * case.size, generator).chunk(2, dim=1)
    inputs = inputs.contiguous()
    return {"input_ids": inputs, "attention_mask": torch.ones_like(inputs), "labels": labels.contiguous()}


def _next_word(case: Case, generator: torch.Generator) -> Batch:
    text = _pieces(case, case.size + 1, generator)
    return {"inputs": text[:, :-1].contiguous(), "labels": text[:, 1:].contiguous()}


@cache
def _digits() -> tuple[Tensor, Tensor]:
    """8x8 grey images in 0..1 and their classes 0..9: scikit-learn's digits if it is installed, else noisy patterns."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        generator = torch.Generator().manual_seed(20)
        labels = torch.randint(10, (1797,), generator=generator)
        patterns = torch.rand(10, 8, 8, generator=generator)
        return (patterns[labels] + 0.3 * torch.randn(1797, 8, 8, generator=generator)).clamp(0, 1), labels
    digits = load_digits()
    return torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target, dtype=torch.int64)


def _flat(case: Case, generator: torch.Generator) -> Batch:
    images, labels = _digits()
    chosen = torch.randint(len(images), (case.batch,), generator=generator)
    return {"inputs": images[chosen].flatten(1), "labels": labels[chosen]}


def _images(case: Case, generator: torch.Generator) -> Batch:
    images, labels = _digits()
    chosen = torch.randint(len(images), (case.batch,), generator=generator)
    large = torch.nn.functional.interpolate(images[chosen, None], (case.size, case.size), mode="bilinear")
    return {"pixel_values": (large.repeat(1, 3, 1, 1) - 0.5) * 2, "labels": labels[chosen]}


_TASKS: dict[str, Callable[[Case, torch.Generator], Batch]] = {
    "masked": _masked,
    "causal": _causal,
    "continued": _continued,
    "next word": _next_word,
    "flat": _flat,
    "images": _images,
}


def batches(case: Case, device: str, seed: int, count: int = 16) -> list[Batch]:
    """`count` different batches on `device`; the same ones for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    made = [_TASKS[case.task](case, generator) for _ in range(count)]
    return [{name: value.to(device) for name, value in batch.items()} for batch in made]
