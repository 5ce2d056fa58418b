"""What is trained: the models of the suites, built from their configurations with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

DTYPES = ("fp32", "bf16")


@dataclass(frozen=True)
class Case:
    """One model and the batches it is trained on.

    Attributes:
        architecture: the name of a class of transformers, or of `bench.modules`.
        config: its configuration, as far as it is not the default one of the architecture.
        task: which batches, see `bench.data`.
        batch: examples in a batch.
        size: words of an example, or pixels along a side of an image.
        small: what to change in `config` for `tiny`.
        small_size: `size` of `tiny`.
    """

    name: str
    architecture: str
    task: str
    batch: int
    size: int
    config: Mapping[str, Any] = field(default_factory=dict)
    small: Mapping[str, Any] = field(default_factory=dict)
    small_size: int = 8

    @property
    def vocabulary(self) -> int:
        """How many different words there are."""
        return int(self.config["vocab_size"])

    def tiny(self) -> Case:
        """A twin with the same layers, so the same operator calls, and tensors so small that computing costs little."""
        return replace(self, batch=2, size=self.small_size, config={**self.config, **self.small})

    def build(self) -> nn.Module:
        """The model with random weights from torch's current seed."""
        from bench import modules

        own = getattr(modules, self.architecture, None)
        if own is not None:
            return own(**self.config)
        import transformers

        model = getattr(transformers, self.architecture)
        return model(model.config_class(**self.config))


_BERT_SMALL = {"vocab_size": 128, "hidden_size": 24, "intermediate_size": 24}
_GPT2_SMALL = {"vocab_size": 128, "n_embd": 24, "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0}
_GPT2 = {"vocab_size": 50257, "use_cache": False}
_NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "use_cache": False,
}
_LLAMA_SMALL = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 32}
_T5 = {"vocab_size": 32128, "use_cache": False, "decoder_start_token_id": 0}
_T5_SMALL = {"vocab_size": 128, "d_model": 16, "d_kv": 2, "d_ff": 16}
_VIT_SMALL = {"hidden_size": 24, "intermediate_size": 24, "image_size": 32}
_RESNET_SMALL = {"embedding_size": 4, "hidden_sizes": [8, 8, 8, 8]}
_BERT_MINI = {"vocab_size": 8192, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
_GPT2_MINI = {**_GPT2, "vocab_size": 8192, "n_embd": 256, "n_layer": 2, "n_head": 4}
_RESNET_MINI = {
    "embedding_size": 32,
    "hidden_sizes": [32, 64, 128, 256],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
    "num_labels": 10,
}
_LSTM_SMALL = {"vocab_size": 128, "hidden": 8}

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("bert-base", "BertForMaskedLM", "masked", 8, 128, {"vocab_size": 30522}, _BERT_SMALL),
        Case(
            "distilbert",
            "DistilBertForMaskedLM",
            "masked",
            8,
            128,
            {"vocab_size": 30522},
            {"vocab_size": 128, "dim": 24, "hidden_dim": 24},
        ),
        Case("gpt2", "GPT2LMHeadModel", "causal", 4, 256, _GPT2, _GPT2_SMALL),
        Case("gpt2-nodrop", "GPT2LMHeadModel", "causal", 4, 256, {**_GPT2, **_NO_DROPOUT}, _GPT2_SMALL),
        Case("llama-60m", "LlamaForCausalLM", "causal", 4, 256, _LLAMA, _LLAMA_SMALL),
        Case("t5-small", "T5ForConditionalGeneration", "continued", 8, 128, _T5, _T5_SMALL),
        # Dropout is off by default here.
        Case("vit-base", "ViTForImageClassification", "images", 8, 224, {"num_labels": 1000}, _VIT_SMALL, 32),
        Case("resnet-50", "ResNetForImageClassification", "images", 16, 224, {"num_labels": 1000}, _RESNET_SMALL, 32),
        Case("lstm", "LSTMLanguageModel", "next word", 20, 35, {"vocab_size": 10000, "hidden": 650}, _LSTM_SMALL),
        Case("mlp", "MLP", "flat", 64, 8, {"hidden": 256}, {"hidden": 16}),
        Case("bert-small", "BertForMaskedLM", "masked", 8, 128, {**_BERT_MINI, "intermediate_size": 1024}, _BERT_SMALL),
        Case("gpt2-mini", "GPT2LMHeadModel", "causal", 4, 128, _GPT2_MINI, _GPT2_SMALL),
        Case("resnet-small", "ResNetForImageClassification", "images", 16, 64, _RESNET_MINI, _RESNET_SMALL, 32),
        Case("lstm-small", "LSTMLanguageModel", "next word", 20, 35, {"vocab_size": 8192, "hidden": 200}, _LSTM_SMALL),
    )
}

_FULL = (
    *("bert-base", "distilbert", "gpt2", "gpt2-nodrop", "llama-60m", "t5-small"),
    *("vit-base", "resnet-50", "lstm", "mlp"),
)
SUITES: dict[str, list[tuple[str, str]]] = {
    "quick": [
        ("mlp", "fp32"),
        ("lstm-small", "fp32"),
        ("bert-small", "bf16"),
    ],
    "full": [(name, dtype) for name in _FULL for dtype in DTYPES],
}


def select(suite: str, models: list[str] | None, dtypes: list[str]) -> list[tuple[Case, str]]:
    """The cases to measure: those of the suite, or the named models; of both only the given dtypes.

    Raises:
        ValueError: an unknown model; the message lists the known ones.
    """
    if unknown := [name for name in models or () if name not in CASES]:
        raise ValueError(f"unknown model {', '.join(unknown)}: the models are {', '.join(CASES)}")
    pairs = SUITES[suite] if models is None else [(name, dtype) for name in models for dtype in DTYPES]
    return [(CASES[name], dtype) for name, dtype in pairs if dtype in dtypes]
