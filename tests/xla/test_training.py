"""Training on the xla device equals training on the CPU bit for bit, and is replayed; compiled it is equal up to rounding."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.same import difference
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import markstep
from markstep.engine.options import resolve
from markstep.engine.region import Place
from markstep.engine.report import Report
from markstep.engine.trial import Trial
from markstep.xla import device

Step = Callable[[int], Tensor]


def train(make: Callable[[str], tuple[Step, Any]], where: str, steps: int = 12) -> tuple[list[Tensor], Any]:
    """Losses and what is left, on the CPU."""
    torch.manual_seed(0)
    step, state = make(where)
    torch.manual_seed(1)
    losses = []
    for i in range(steps):
        losses.append(step(i))
        if where == "xla":
            device.barrier("mark_step")
    left = [t.detach().cpu() for t in (*state.parameters(), *state.buffers())]
    device.leave()
    return [t.detach().cpu() for t in losses], left


def compare(make: Callable[[str], tuple[Step, Any]], recorded: int = 5) -> Report:
    """Trains on both; at most so many steps may have run eagerly."""
    want = train(make, "cpu")
    found = markstep.explain()
    got = train(make, "xla")
    assert difference(want, got) is None
    assert found.eager_steps <= recorded and found.compiled_steps, str(found)
    return found


def perceptron(where: str, dropout: float = 0.2) -> tuple[Step, nn.Module]:
    """Layer norm, dropout, clipping, AdamW and a learning rate that changes."""
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(dropout), nn.LayerNorm(16), nn.Linear(16, 3)).to(where)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + n))
    data = torch.randn(12, 5, 8)

    def step(i: int) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(data[i].to(where)), torch.arange(5, device=where) % 3)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        return loss

    return step, net


def convolutions(where: str) -> tuple[Step, nn.Module]:
    """Batch norm with running statistics, pooling, momentum."""
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    ).to(where)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    def step(i: int) -> Tensor:
        loss = net(torch.full((3, 2, 8, 8), float(i)).to(where) + torch.eye(8, device=where)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=i % 2 == 0)
        return loss

    return step, net


def recurrent(where: str) -> tuple[Step, nn.Module]:
    """An LSTM over embeddings, Adam with amsgrad."""
    net = nn.ModuleDict({"embed": nn.Embedding(7, 4), "lstm": nn.LSTM(4, 5, batch_first=True), "out": nn.Linear(5, 7)}).to(where)
    optimizer = torch.optim.Adam(net.parameters(), amsgrad=True)
    tokens = torch.randint(0, 7, (12, 2, 6))

    def step(i: int) -> Tensor:
        x = tokens[i].to(where)
        hidden, _ = net["lstm"](net["embed"](x[:, :-1]))
        loss = F.cross_entropy(net["out"](hidden).flatten(0, 1), x[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, net


def checkpointed(where: str, reentrant: bool = False) -> tuple[Step, nn.Module]:
    """Dropout inside activation checkpointing: the recomputation has the mask of forward."""
    net = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 6)).to(where)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(i: int) -> Tensor:
        x = torch.full((2, 6), 1.0 + i, device=where, requires_grad=True)
        loss = checkpoint(net, x, use_reentrant=reentrant).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, net


def accumulated(where: str) -> tuple[Step, nn.Module]:
    """Four micro-batches for each update."""
    net = nn.Linear(4, 1).to(where)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    data = torch.randn(12, 4, 3, 4)

    def step(i: int) -> Tensor:
        total = torch.zeros((), device=where)
        for micro in data[i]:
            loss = net(micro.to(where)).square().mean() / 4
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step, net


def transformer(where: str, family: str = "bert") -> tuple[Step, nn.Module]:
    """Hugging Face models, with a padding mask."""
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

    if family == "bert":
        net: Any = BertForMaskedLM(
            BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
        )
    else:
        net = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=16))
    net = net.to(where)
    optimizer = torch.optim.AdamW(net.parameters())
    tokens = torch.randint(0, 50, (12, 2, 10))
    mask = torch.ones(2, 10, dtype=torch.long)
    mask[1, 7:] = 0

    def step(i: int) -> Tensor:
        x = tokens[i].to(where)
        loss: Tensor = net(input_ids=x, attention_mask=mask.to(where), labels=x).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, net


@pytest.mark.parametrize(
    "make",
    [
        perceptron,
        convolutions,
        checkpointed,
        functools.partial(checkpointed, reentrant=True),
        accumulated,
        transformer,
        functools.partial(transformer, family="gpt2"),
    ],
    ids=["perceptron", "convolutions", "checkpoint", "reentrant checkpoint", "accumulated", "bert", "gpt2"],
)
def test_bit_for_bit(make: Callable[[str], tuple[Step, nn.Module]]) -> None:
    compare(make)


def test_recurrent_layers() -> None:
    """On the CPU oneDNN computes an LSTM as a whole; here its cells are operators of their own, which rounds differently."""
    (want, _), (got, _) = train(recurrent, "cpu"), train(recurrent, "xla")
    torch.testing.assert_close(torch.stack(got), torch.stack(want), rtol=1e-5, atol=1e-6)
    assert markstep.explain().compiled_steps


def test_optimizers_do_not_start_new_programs() -> None:
    """First the optimizer has no state, then it has: two programs at most, whatever the learning rate does."""
    found = compare(perceptron)
    assert len(found.programs) <= 2, str(found)


def test_bert_records_the_same_calls_as_on_the_cpu() -> None:
    """So that what is compiled, and how fast it runs, is the same, too."""

    def calls(where: str) -> int:
        markstep.engine.report.reset()
        torch.manual_seed(0)
        step, _ = transformer(where)
        if where == "cpu":
            step = markstep.compile(step, backend="interpreter", rng="torch")
        for i in range(6):
            step(i)
            if where == "xla":
                device.barrier("mark_step")
        device.leave()
        return max(p.calls for p in markstep.explain().programs)

    cpu, xla = calls("cpu"), calls("xla")
    assert xla <= cpu + 8, f"{xla} instead of {cpu}: only the transfers of the batch should be added"


def test_autocast() -> None:
    a, b = torch.randn(3, 4, device="xla"), torch.randn(4, 3, device="xla")
    with torch.autocast("xla"):
        assert (a @ b).dtype == torch.bfloat16 and F.linear(a, b.t()).dtype == torch.bfloat16
        assert torch.softmax((a @ b), 1).dtype == torch.float32
        assert torch.cat([a @ b, a[:, :3]]).dtype == torch.float32
        assert F.layer_norm((a @ b), (3,)).dtype == torch.bfloat16
    with torch.autocast("xla", torch.float16):
        assert (a @ b).dtype == torch.float16
    with torch.autocast("cpu"):
        assert (a @ b).dtype == torch.float32
    assert (a @ b).dtype == torch.float32


def test_loss_scaling() -> None:
    """An overflow skips the update, as on the CPU."""

    def make(where: str) -> tuple[Step, nn.Module]:
        net = nn.Linear(3, 1).to(where)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(where, init_scale=4.0, growth_interval=2)

        def step(i: int) -> Tensor:
            optimizer.zero_grad()
            loss = net(torch.full((2, 3), 1e38 if i == 5 else 1.0).to(where)).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss

        return step, net

    want, got = train(make, "cpu"), train(make, "xla")
    assert difference(want, got) is None


@pytest.mark.compile
@pytest.mark.parametrize("make", [functools.partial(perceptron, dropout=0.0), transformer], ids=["perceptron", "bert"])
def test_compiled(make: Callable[[str], tuple[Step, nn.Module]], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the compiler, without dropout's random numbers: losses as on the CPU up to rounding."""
    monkeypatch.setattr(nn.Dropout, "forward", lambda self, x: x)
    monkeypatch.setattr(Trial, "next", lambda self: "predict")
    place = Place(resolve({"background": False}), "a test")
    monkeypatch.setattr(device, "_place", place)
    if make is transformer:
        make = lambda where: _without_dropout(transformer(where))  # noqa: E731
    want, _ = train(make, "cpu")
    found = markstep.explain()
    got, _ = train(make, "xla")
    assert found.compiled_steps >= 6, str(found)
    torch.testing.assert_close(torch.stack(got), torch.stack(want), rtol=1e-4, atol=1e-5)


def _without_dropout(made: tuple[Step, nn.Module]) -> tuple[Step, nn.Module]:
    made[1].eval()
    return made


def test_data_parallel_with_a_smaller_last_batch() -> None:
    """Gradients are views of DDP's buckets; the smaller batch is met while backward runs in a thread of autograd's."""
    from torch import distributed as dist

    from markstep.compat.exposing import expose_torch_xla

    expose_torch_xla()
    import torch_xla.distributed.xla_backend  # noqa: F401

    def make(where: str) -> tuple[Step, nn.Module]:
        net: Any = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(where)
        wrapped = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True) if where == "xla" else net
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step(i: int) -> Tensor:
            optimizer.zero_grad()
            loss = wrapped(torch.full((2 if i == 10 else 5, 3), 0.1 * i).to(where)).square().sum()
            loss.backward()
            optimizer.step()
            return loss

        return step, net

    dist.init_process_group("xla", init_method="xla://")
    try:
        compare(make)
    finally:
        dist.destroy_process_group()
