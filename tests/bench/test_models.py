"""The suites, their batches and their training step."""

import math

import pytest
import torch
from bench.data import batches, tokens
from bench.models import CASES, SUITES, select
from bench.training import Training


@pytest.mark.parametrize("name", CASES)
def test_tiny_twins_train(name: str) -> None:
    training = Training(CASES[name].tiny(), "bf16", "cpu", "fused")
    for _ in range(2):
        training.advance()
    training.settle()
    assert all(math.isfinite(loss) for loss in training.losses)
    assert training.model.training


def test_same_seed_same_losses() -> None:
    def losses(seed: int) -> list[float]:
        training = Training(CASES["lstm-small"].tiny(), "fp32", "cpu", "foreach", seed)
        for _ in range(3):
            training.advance()
        training.settle()
        return training.losses

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


def test_masked_batches() -> None:
    case = CASES["bert-small"]
    first, second = batches(case, "cpu", seed=0, count=2)
    assert first["input_ids"].shape == first["labels"].shape == (8, 128)
    assert not torch.equal(first["input_ids"], second["input_ids"])
    guessed = (first["labels"] != -100).float().mean().item()
    assert 0.10 < guessed < 0.20
    kept = first["labels"] == -100
    assert not (first["input_ids"][kept] == 2).any()  # no mask where nothing is to be guessed


def test_continuation_follows_its_input() -> None:
    batch = batches(CASES["t5-small"], "cpu", seed=0, count=1)[0]
    text = tokens(CASES["t5-small"].vocabulary).tolist()
    joined = batch["input_ids"][0].tolist() + batch["labels"][0].tolist()
    assert any(text[i : i + len(joined)] == joined for i in range(len(text)))


def test_words_fit_the_vocabulary() -> None:
    assert tokens(128).max() < 128
    assert (tokens(128) == 1).any()  # rare words are unknown
    assert not (tokens(30522) == 1).any()


def test_images_in_every_size() -> None:
    batch = batches(CASES["resnet-small"], "cpu", seed=0, count=1)[0]
    assert batch["pixel_values"].shape == (16, 3, 64, 64)
    assert batch["labels"].min() >= 0 and batch["labels"].max() < 10


def test_suites_name_known_models() -> None:
    assert {name for pairs in SUITES.values() for name, _ in pairs} <= set(CASES)
    assert len(SUITES["full"]) == 20


def test_selection() -> None:
    assert [(c.name, d) for c, d in select("quick", None, ["fp32"])] == [("mlp", "fp32"), ("lstm-small", "fp32")]
    assert [(c.name, d) for c, d in select("quick", ["mlp"], ["fp32", "bf16"])] == [("mlp", "fp32"), ("mlp", "bf16")]
    with pytest.raises(ValueError, match="unknown model bert: the models are bert-base"):
        select("quick", ["bert"], ["fp32"])
