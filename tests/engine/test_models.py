"""Whole models train to eager's bits: losses, weights, buffers, gradients, optimizer state."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import compare
from torch import nn
from torch.nn import functional as F

VOCABULARY, BATCH, LENGTH = 61, 3, 9


def bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
        )  # fmt: skip
    )


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0)
    )


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
        )  # fmt: skip
    )


def t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCABULARY,
            d_model=16,
            d_kv=8,
            d_ff=32,
            num_layers=2,
            num_heads=2,
            decoder_start_token_id=0,
            pad_token_id=0,
        )  # fmt: skip
    )


def bart() -> nn.Module:
    from transformers import BartConfig, BartForConditionalGeneration

    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=VOCABULARY,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            max_position_embeddings=16,
        )  # fmt: skip
    )


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            image_size=8,
            patch_size=4,
            num_labels=5,
        )  # fmt: skip
    )


def resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(
        ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=5)
    )


def text(masked: bool) -> Callable[[], dict[str, torch.Tensor]]:
    def batch() -> dict[str, torch.Tensor]:
        ids = torch.randint(1, VOCABULARY, (BATCH, LENGTH))
        labels = ids.clone()
        if masked:
            hidden = torch.rand(ids.shape) < 0.3
            hidden[:, 0] = True
            labels[~hidden] = -100
        mask = torch.ones_like(ids)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    return batch


def images() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(BATCH, 3, 8, 8), "labels": torch.randint(5, (BATCH,))}


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], dict[str, torch.Tensor]]]] = {
    "bert": (bert, text(masked=True)),
    "gpt2": (gpt2, text(masked=False)),
    "llama": (llama, text(masked=False)),
    "t5": (t5, text(masked=False)),
    "bart": (bart, text(masked=False)),
    "vit": (vit, images),
    "resnet": (resnet, images),
}


def hugging_face(name: str, autocast: torch.dtype | None) -> Any:
    build, batch = MODELS[name]

    def make() -> Any:
        model = build().train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (i + 1))
        batches = [batch() for _ in range(4)]

        def step(i: int) -> Any:
            with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
                loss = model(**batches[i % 4]).loss
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            return loss, norm

        return step, [model, optimizer]

    return make


@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_hugging_face(name: str, autocast: torch.dtype | None) -> None:
    found = compare(hugging_face(name, autocast))
    assert not [where for what, where in found.boundaries if what != "end of the step"], found


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_asking_for_a_mask_does_not_cut_the_step(name: str) -> None:
    """Hugging Face models ask `attention_mask.all()` in every forward; only a small slice of the step depends on it."""
    found = compare(hugging_face(name, None))
    assert {what for what, _ in found.boundaries} == {"end of the step"}, found
    assert any("is_nonzero" in what or "_local_scalar_dense" in what or "equal" in what for what, _ in found.uncut), found


def test_lstm() -> None:
    def make() -> Any:
        lstm, head = nn.LSTM(5, 7, num_layers=2, dropout=0.2, batch_first=True), nn.Linear(7, 3)
        optimizer = torch.optim.Adam([*lstm.parameters(), *head.parameters()], lr=1e-2)
        x, y = torch.randn(4, 6, 5), torch.randint(3, (4,))

        def step(i: int) -> Any:
            out, _ = lstm(x)
            loss = F.cross_entropy(head(out[:, -1]), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return step, [lstm, head, optimizer]

    compare(make)


def test_lstm_state_carried_between_steps() -> None:
    def make() -> Any:
        cell, head = nn.LSTMCell(5, 7), nn.Linear(7, 3)
        optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
        x, y = torch.randn(4, 6, 5), torch.randint(3, (4,))
        memory = {"h": torch.zeros(4, 7), "c": torch.zeros(4, 7)}

        def step(i: int) -> Any:
            h, c = memory["h"], memory["c"]
            for t in range(6):
                h, c = cell(x[:, t], (h, c))
            loss = F.cross_entropy(head(h), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            memory["h"], memory["c"] = h.detach(), c.detach()
            return loss

        return step, [cell, head, optimizer, memory]

    compare(make)


def test_mlp_with_the_step_context() -> None:
    from tests.helpers import EXACT

    import markstep

    def make(wrap: Any) -> Any:
        model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        x, y = torch.randn(7, 6), torch.randn(7, 1)
        native = wrap(make) is make

        def body() -> torch.Tensor:
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        def step(i: int) -> Any:
            if native:
                return body()
            with markstep.step(**EXACT):
                return body()

        return step, [model, optimizer]

    compare(make, wraps_itself=True)


class Block(nn.Module):
    """A residual block with batch normalisation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.Conv2d(channels, channels, 3, padding=1),
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu_(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + x, inplace=True)


@pytest.mark.parametrize("channels_last", [False, True])
def test_residual_network_train_and_eval(channels_last: bool) -> None:
    """Running statistics are updated in place, with a tensor and with a cumulative momentum; evaluation takes turns."""

    def make() -> Any:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), Block(4), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(5))
        model[1].norms[0].momentum = None
        x, y = torch.randn(BATCH, 3, 8, 8), torch.randint(5, (BATCH,))
        model(x)
        if channels_last:
            model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)

        def step(i: int) -> Any:
            model.train(i % 3 != 2)
            if not model.training:
                with torch.no_grad():
                    return model(x).argmax(1), F.cross_entropy(model(x), y)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return step, [model, optimizer]

    compare(make, steps=24, recorded=8)


def test_gan_with_two_optimizers() -> None:
    def make() -> Any:
        generator = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        critic = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2, inplace=True), nn.Dropout(0.3), nn.Linear(8, 1))
        optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2, betas=(0.5, 0.999)) for m in (generator, critic)]
        real = torch.randn(6, 2)
        bce = nn.BCEWithLogitsLoss()

        def step(i: int) -> Any:
            fake = generator(torch.randn(6, 4))
            optimizers[1].zero_grad()
            critic_loss = bce(critic(real), torch.ones(6, 1)) + bce(critic(fake.detach()), torch.zeros(6, 1))
            critic_loss.backward()
            optimizers[1].step()
            optimizers[0].zero_grad()
            loss = bce(critic(fake), torch.ones(6, 1))
            loss.backward()
            optimizers[0].step()
            return critic_loss, loss, fake

        return step, [generator, critic, *optimizers]

    compare(make)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_gradient_scaler(dtype: torch.dtype) -> None:
    """Unscale, clip, skip the update when a gradient is infinite: the scaler's decision is a value access."""

    def make() -> Any:
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        x, y = torch.randn(5, 6), torch.randn(5, 1)
        bad = y.clone()
        bad[0] = torch.inf

        def step(i: int) -> Any:
            with torch.autocast("cpu", dtype=dtype):
                loss = F.mse_loss(model(x).float(), bad if i % 7 == 5 else y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            return loss

        return step, [model, optimizer, scaler]

    compare(make, recorded=10)
