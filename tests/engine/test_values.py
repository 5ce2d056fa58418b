"""Values that Python asks for inside a step: the step is cut there, or not at all, and the numbers are eager's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import EXACT, compare
from torch import nn
from torch.nn import functional as F

import markstep


def trained(body: Any) -> Any:
    """A loop whose step calls `body(output, loss, step number)` between forward and backward."""

    def make() -> Any:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x, y = torch.randn(5, 6), torch.randn(5, 4)

        def step(i: int) -> Any:
            out = model(x)
            loss = F.mse_loss(out, y)
            value = body(out, loss, i)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss, value

        return step, [model, optimizer]

    return make


def _numpy_sum(out: torch.Tensor) -> Any:
    return float(np.asarray(out.detach()).sum())


def _fraction(out: torch.Tensor) -> Any:
    return f"{out.detach().mean():.4f}", f"{out.detach().mean().item():.3e}"


READS = {
    "item": lambda out, loss, i: loss.item(),
    "float": lambda out, loss, i: float(loss.detach()),
    "int": lambda out, loss, i: int(out.argmax()),
    "bool": lambda out, loss, i: bool(loss > 0.5),
    "tolist": lambda out, loss, i: out[0].tolist(),
    "numpy": lambda out, loss, i: out.detach().numpy().copy().tolist(),
    "asarray": lambda out, loss, i: _numpy_sum(out),
    "numpy-function": lambda out, loss, i: float(np.mean(out.detach().numpy())),
    "dlpack": lambda out, loss, i: torch.utils.dlpack.from_dlpack(out.detach()),
    "repr": lambda out, loss, i: repr(out),
    "str": lambda out, loss, i: str(loss),
    "format": lambda out, loss, i: _fraction(out),
    "data_ptr": lambda out, loss, i: out.data_ptr() != 0,
    "storage": lambda out, loss, i: out.detach().untyped_storage().data_ptr() != 0,
    "equal": lambda out, loss, i: torch.equal(out, out.clone()),
    "allclose": lambda out, loss, i: torch.allclose(out, out + 1e-9),
    "isfinite": lambda out, loss, i: torch.isfinite(out).all().item(),
    "len": lambda out, loss, i: (len(out), out.numel(), out.size(), out.dim(), out.is_contiguous()),
    "iterate": lambda out, loss, i: [row.sum() for row in out],
    "unpack": lambda out, loss, i: sum(v.item() for v in out[0]),
    "contains": lambda out, loss, i: 0.5 in out,
    "index": lambda out, loss, i: [10, 20, 30, 40][out[0].argmax()],
    "cpu": lambda out, loss, i: out.detach().cpu(),
    "nonzero": lambda out, loss, i: (out > 0).nonzero(),
    "nonzero-tuple": lambda out, loss, i: torch.where(out > 0),
    "mask": lambda out, loss, i: out[out > 0],
    "mask-assign": lambda out, loss, i: out.detach().clone().masked_fill_(out > 0, 1.0),
    "mask-set": lambda out, loss, i: _mask_set(out),
    "masked-select": lambda out, loss, i: out.masked_select(out > 0).sum(),
    "unique": lambda out, loss, i: torch.unique(out.round(), return_inverse=True, return_counts=True),
    "unique-consecutive": lambda out, loss, i: torch.unique_consecutive(out.round()),
    "bincount": lambda out, loss, i: torch.bincount(out.argmax(1)),
    "repeat-interleave": lambda out, loss, i: out.repeat_interleave(out.argmax(1) + 1, dim=0),
    "multinomial": lambda out, loss, i: torch.multinomial(out.softmax(-1), 2),
    "histogram": lambda out, loss, i: torch.histc(out.detach(), 4),
    "combinations": lambda out, loss, i: torch.combinations(out[0]),
    "split-by-values": lambda out, loss, i: torch.tensor_split(out, out.argmax(1)[:2].sort().values),
    "ctc-loss": lambda out, loss, i: _ctc(out),
    "packed-sequence": lambda out, loss, i: _packed(out),
    "storage-clone": lambda out, loss, i: torch.tensor(out.detach().storage().tolist()[:3]),
    "new-tensor": lambda out, loss, i: torch.tensor(loss.item()),
    "stack-of-items": lambda out, loss, i: torch.tensor([v.item() for v in out[0]]),
    "pickle": lambda out, loss, i: _pickled(out),
    "deepcopy": lambda out, loss, i: _copied(out),
    "testing": lambda out, loss, i: torch.testing.assert_close(out, out.clone()),
    "share-memory": lambda out, loss, i: out.detach().clone().share_memory_(),
}  # fmt: skip


def _mask_set(out: torch.Tensor) -> torch.Tensor:
    copy = out.detach().clone()
    copy[copy > 0] = 2.0
    copy[copy < -0.5] *= 3.0
    return copy


def _ctc(out: torch.Tensor) -> torch.Tensor:
    lengths = out.size(0) + 0 * out[:1, 0].long(), (out[:1, 0] > 9) + 1
    return F.ctc_loss(out.log_softmax(-1).unsqueeze(1), out.argmax(1)[None, :2] % 3 + 1, *lengths)


def _packed(out: torch.Tensor) -> Any:
    lengths = (out[:, 0] > 9).long() + torch.tensor([4, 3, 2, 2, 1])
    packed = nn.utils.rnn.pack_padded_sequence(out[:, :, None], lengths, batch_first=True)
    return nn.utils.rnn.pad_packed_sequence(packed)


def _pickled(out: torch.Tensor) -> Any:
    import io

    file = io.BytesIO()
    torch.save(out.detach(), file)
    file.seek(0)
    return torch.load(file)


def _copied(out: torch.Tensor) -> Any:
    import copy

    return copy.deepcopy(out.detach()), copy.copy(out.detach())


@pytest.mark.parametrize("name", READS)
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")
def test_value_in_the_middle(name: str) -> None:
    compare(trained(READS[name]), recorded=12, share=0.6)


def test_the_users_line_is_remembered() -> None:
    def body(out: torch.Tensor, loss: torch.Tensor, i: int) -> Any:
        return loss.item()  # here

    found = compare(trained(body))
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# here"))
    assert any("_local_scalar_dense" in what and where.endswith(f"test_values.py:{line}") for what, where in found.boundaries)


def test_print_in_the_middle(capsys: pytest.CaptureFixture[str]) -> None:
    compare(trained(lambda out, loss, i: print(i, loss, out[0, :2])), share=0.6)  # printing runs outside of programs
    lines = capsys.readouterr().out.splitlines()
    assert lines[:20] == lines[20:] and len(lines) == 40


def test_branches_on_the_step_number() -> None:
    def make() -> Any:
        model = nn.Linear(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(5, 6)

        def step(i: int) -> Any:
            out = model(x)
            if i % 3 == 0:
                out = out.relu()
            elif i % 3 == 1:
                out = out * 2
            loss = out.square().mean()
            if i % 5 == 4:
                loss = loss + model.weight.abs().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return step, [model, optimizer]

    compare(make, steps=45, recorded=16)


def test_branches_on_values() -> None:
    def make() -> Any:
        model = nn.Linear(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        data = [torch.randn(5, 6) for _ in range(5)]

        def step(i: int) -> Any:
            out = model(data[i % 5])
            branch = 0
            if out.mean() > 0:
                out, branch = out * 0.5, 1
            while out.abs().max() > 1:
                out, branch = out * 0.7, branch + 10
            loss = (out - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if model.weight.grad.norm().item() > 0.2:
                optimizer.step()
            return loss, branch

        return step, [model, optimizer]

    compare(make, steps=40, recorded=25, share=0.5)


def test_early_value_of_the_input_does_not_cut() -> None:
    """A slice that depends on a few cheap calls is evaluated alone; random calls before it stay in order."""

    def make() -> Any:
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        lengths = torch.tensor([2, 3, 5, 1])
        x = torch.randn(4, 6)

        def step(i: int) -> Any:
            hidden = model(x)
            longest = (lengths * 2).max().item()
            loss = (hidden * longest).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss, longest

        return step, [model, optimizer]

    found = compare(make)
    assert {what for what, _ in found.boundaries} == {"end of the step"}, found
    assert found.uncut, found


def test_early_value_does_not_overtake_updates() -> None:
    """The counter is read before and after it changes in the same step."""

    def make() -> Any:
        model = nn.Linear(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        counter, x = torch.zeros(()), torch.randn(4, 6)

        def step(i: int) -> Any:
            before = counter * 1
            kept = counter.view(1)
            out = model(x) * counter.clone()
            counter.add_(1)
            first = counter.item()
            counter.mul_(2)
            second = counter.item()
            loss = out.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss, before, kept, first, second, counter - before

        return step, [model, optimizer, counter]

    compare(make, share=0.6)


def test_early_value_sees_writes_to_the_same_memory() -> None:
    """Two storages on one array of numpy: what is read through one was written through the other."""

    def make() -> Any:
        array = np.zeros(4, dtype=np.float32)
        a, b = torch.from_numpy(array), torch.from_numpy(array)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(i: int) -> Any:
            loss = model(torch.ones(2, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            before = b[0].item()
            a.add_(1)
            return loss, before, b[1].item(), (b * 2).sum().item()

        return step, [model, optimizer, a]

    compare(make, recorded=None)


def test_pause_and_sync() -> None:
    def make() -> Any:
        model = nn.Linear(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(4, 6)

        def step(i: int) -> Any:
            out = model(x)
            with markstep.pause():
                noise = torch.ones(4) * i
                norm = out.detach().norm().item() if i % 2 else 0.0
                with torch.no_grad():
                    model.bias.add_(0.01)
            loss = (out + noise).square().mean()
            optimizer.zero_grad()
            loss.backward()
            markstep.sync()
            optimizer.step()
            return loss, norm

        return step, [model, optimizer]

    compare(make, recorded=8, share=0.6)


def test_code_outside_the_dispatcher_gets_data_or_an_error() -> None:
    """What reads memory behind torch's back: Tensor methods give data; C++ below them names the remedy."""
    model = nn.Linear(3, 3)
    x = torch.randn(2, 3)

    step = markstep.compile(lambda read: read(model(x).detach()), **EXACT)
    plain = model(x).detach()
    for _ in range(3):
        step(lambda out: out + 1)
    assert np.array_equal(step(lambda out: out.numpy()), plain.numpy())
    assert step(lambda out: np.frombuffer(memoryview(out.numpy()), dtype=np.float32).tolist()) == plain.flatten().tolist()
    with pytest.raises(RuntimeError, match=r"markstep[.]sync\(\).*markstep[.]pause\(\)"):
        step(lambda out: torch._C._to_dlpack(out))
    assert torch.equal(step(lambda out: out + 1), plain + 1)
