"""Saving and loading in one process."""

from __future__ import annotations

import copy
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.checkpoint.training import Training
from tests.helpers import same_bits
from torch import nn

import markstep
from markstep import checkpoint
from markstep.checkpoint import CheckpointError, Checkpoints, ResumableLoader

BOTH = pytest.mark.parametrize("sharded", [False, True])


def assert_equal(a: Any, b: Any) -> None:
    """Nested states with the same bits."""
    if isinstance(a, torch.Tensor):
        assert same_bits(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    else:
        assert a == b


def states(training: Training) -> dict[str, Any]:
    return {name: one.state_dict() for name, one in training.parts().items()}


RESUME = """
import sys, torch
from markstep.checkpoint import Checkpoints
from tests.checkpoint.training import Training
torch.set_num_threads(1)
training = Training(seed=77)
restored = Checkpoints(sys.argv[1]).load(**training.parts())
training.step = restored.step
print(*(loss.hex() for loss in training.losses(int(sys.argv[2]))))
"""


@pytest.mark.parametrize(("at", "until"), [(3, 6), (9, 12), (10, 13), (13, 24)])
@BOTH
def test_resumed_losses_are_those_of_an_undisturbed_run(tmp_path: Path, sharded: bool, at: int, until: int) -> None:
    """In the middle of an epoch of 10 batches, at its last batch, after it, and in the next one."""
    training, wanted = Training(seed=1), []
    for loss in training.losses(until):
        wanted.append(loss)
        if training.step == at:
            Checkpoints(tmp_path, sharded=sharded).save(at, **training.parts())
    resumed = Training(seed=2)
    restored = Checkpoints(tmp_path).load(**resumed.parts())
    assert restored is not None and restored.step == at
    resumed.step = at
    assert list(resumed.losses(until)) == wanted[at:]
    assert_equal(states(training), states(resumed))


@pytest.mark.slow
def test_a_new_process_resumes_with_the_same_bits(tmp_path: Path) -> None:
    training, wanted = Training(seed=1), []
    for loss in training.losses(6):
        wanted.append(loss)
        if training.step == 3:
            Checkpoints(tmp_path).save(3, **training.parts())
    root = Path(__file__).resolve().parents[2]
    output = subprocess.run(
        [sys.executable, "-c", RESUME, str(tmp_path), "6"], cwd=root, capture_output=True, text=True, timeout=100, check=True
    ).stdout
    assert output.split() == [loss.hex() for loss in wanted[3:]]


def test_random_numbers_go_on(tmp_path: Path) -> None:
    np.random.seed(5)
    checkpoint.save(tmp_path / "a")
    wanted = random.random(), np.random.rand(), torch.rand(3).tolist(), np.random.randn()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    checkpoint.load(tmp_path / "a", rng=False)
    assert random.random() != wanted[0]
    checkpoint.load(tmp_path / "a")
    assert (random.random(), np.random.rand(), torch.rand(3).tolist(), np.random.randn()) == wanted


def test_saving_changes_nothing(tmp_path: Path) -> None:
    for sharded in (False, True):
        training = Training(seed=1)
        before = copy.deepcopy((states(training), torch.get_rng_state()))
        Checkpoints(tmp_path / str(sharded), sharded=sharded).save(0, **training.parts())
        assert_equal(before, (states(training), torch.get_rng_state()))
        assert not training.optimizer.state


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "none")
    assert checkpoints.load(model=nn.Linear(2, 2)) is None
    assert checkpoints.latest() is None and checkpoints.steps() == []
    with pytest.raises(CheckpointError, match="no whole checkpoint of step 4"):
        checkpoints.load(step=4)


def test_the_newest_is_the_one_saved_last(tmp_path: Path) -> None:
    model, checkpoints = nn.Linear(2, 2), Checkpoints(tmp_path, keep=3)
    for step in (5, 10, 15, 10, 12):
        assert checkpoints.save(step, model=model, extra=step) == checkpoints.latest()
    assert checkpoints.steps() == [15, 10, 12]
    restored = checkpoints.load(step=10)
    assert restored is not None and restored.extra == 10 and restored.path.name == "step-00000010-4"
    newest = checkpoints.load()
    assert newest is not None and newest.step == 12
    assert len(list(tmp_path.iterdir())) == 3
    Checkpoints(tmp_path, keep=1).save(13)
    assert checkpoints.steps() == [13] and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ValueError, match="keep=0"):
        Checkpoints(tmp_path, keep=0)
    everything = Checkpoints(tmp_path, keep=None)
    for step in range(14, 20):
        everything.save(step)
    assert everything.steps() == list(range(13, 20))


def test_single_checkpoints(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 3), nn.Linear(2, 3)
    path = checkpoint.save(tmp_path / "x" / "best", step=7, model=model, extra={"accuracy": 0.5})
    restored = checkpoint.load(path, model=other)
    assert (restored.step, restored.extra, restored.path) == (7, {"accuracy": 0.5}, path)
    assert_equal(model.state_dict(), other.state_dict())
    with pytest.raises(CheckpointError, match="exists: remove it"):
        checkpoint.save(path, model=model)
    with pytest.raises(CheckpointError, match="not a whole manifest"):
        checkpoint.load(tmp_path / "y", model=model)


@BOTH
def test_several_objects(tmp_path: Path, sharded: bool) -> None:
    def make(seed: int) -> tuple[nn.Module, dict[str, Any], list[Any]]:
        torch.manual_seed(seed)
        model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(3, 1)})
        first = torch.optim.SGD(model["a"].parameters(), lr=0.1 * seed, momentum=0.9)
        second = torch.optim.Adam([{"params": [model["b"].weight]}, {"params": [model["b"].bias], "lr": 0.5 * seed}])
        return model, {"first": first, "second": second}, [torch.optim.lr_scheduler.StepLR(o, seed) for o in (first, second)]

    model, optimizers, schedulers = make(1)
    for _ in range(2):
        (model["a"](torch.ones(1, 2)).sum() + model["b"](torch.ones(1, 3)).sum()).backward()  # type: ignore[index]
        for one in (*optimizers.values(), *schedulers):
            one.step()
    Checkpoints(tmp_path, sharded=sharded).save(1, model=model, optimizer=optimizers, scheduler=schedulers)
    model2, optimizers2, schedulers2 = make(2)
    Checkpoints(tmp_path).load(model=model2, optimizer=optimizers2, scheduler=schedulers2)
    assert_equal(model.state_dict(), model2.state_dict())
    assert_equal([o.state_dict() for o in optimizers.values()], [o.state_dict() for o in optimizers2.values()])
    assert_equal([s.state_dict() for s in schedulers], [s.state_dict() for s in schedulers2])
    for wrong in (list(optimizers2.values()), optimizers2["first"], {"first": optimizers2["first"]}):
        with pytest.raises(CheckpointError, match="has a dictionary with 'first', 'second' as optimizer"):
            Checkpoints(tmp_path).load(model=model2, optimizer=wrong)


def test_scaler(tmp_path: Path) -> None:
    scaler, other = (torch.amp.GradScaler("cpu", init_scale=s) for s in (1024.0, 2.0))
    scaler.scale(torch.ones(1))
    Checkpoints(tmp_path).save(1, scaler=scaler)
    Checkpoints(tmp_path).load(scaler=other)
    assert other.get_scale() == 1024.0


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(500, 64), nn.Linear(64, 500, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("kept", torch.ones(2))
        self.register_buffer("mask", torch.ones(3), persistent=False)


@BOTH
def test_ties_and_buffers(tmp_path: Path, sharded: bool) -> None:
    model, other = Tied(), Tied()
    model.kept.fill_(5), model.mask.fill_(5)
    path = Checkpoints(tmp_path, sharded=sharded).save(1, model=model)
    assert Checkpoints(tmp_path).load(model=other) is not None
    assert other.head.weight is other.embedding.weight and same_bits(other.head.weight, model.head.weight)
    assert other.kept.tolist() == [5, 5] and other.mask.tolist() == [1, 1, 1]
    if not sharded:
        assert (path / "model.pt").stat().st_size < 2 * 500 * 64 * 4, "the tied weight is stored twice"


def test_parameters_outside_of_the_model(tmp_path: Path) -> None:
    model, temperature = nn.Linear(2, 2), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1, momentum=0.9)
    (model(torch.ones(1, 2)) * temperature).sum().backward()
    optimizer.step()
    Checkpoints(tmp_path).save(1, model=model, optimizer=optimizer)
    other = torch.optim.SGD([*nn.Linear(2, 2).parameters(), nn.Parameter(torch.ones(1))], lr=0.3)
    Checkpoints(tmp_path).load(optimizer=other)
    assert_equal(optimizer.state_dict(), other.state_dict())
    with pytest.raises(ValueError, match=r"shape \[1\] that is not in the model"):
        Checkpoints(tmp_path, sharded=True).save(2, model=model, optimizer=optimizer)


@BOTH
def test_nothing_changes_if_something_does_not_fit(tmp_path: Path, sharded: bool) -> None:
    training = Training(seed=1)
    list(training.losses(3))
    checkpoints = Checkpoints(tmp_path, sharded=sharded)
    checkpoints.save(3, **training.parts())
    other = Training(seed=2)
    list(other.losses(2))
    smaller = torch.optim.AdamW([p for p in other.model.parameters() if p.dim() == 2])
    turned = torch.optim.AdamW(reversed(list(other.model.parameters())))
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"optimizer": smaller}, r"groups of \[2\] parameters, the checkpoint of \[6\]"),
        ({"optimizer": turned}, r"parameter 0 in group 0 of optimizer has shape \[1\], in the checkpoint \[8, 6\]"),
        ({"scheduler": [other.scheduler]}, "has a single one as scheduler, but is to be loaded into a list of 1"),
        ({"scaler": torch.amp.GradScaler("cpu")}, "has no scaler"),
        ({"model": nn.Sequential(nn.Linear(6, 8))}, r"7 names are unexpected \(1\.weight, .*\.\.\.\)"),
        ({"model": nn.ModuleList([*other.model, nn.Linear(1, 1)])}, r"2 names are missing in it \(4\.weight, 4\.bias\)"),
        ({"model": nn.Sequential(nn.Linear(7, 8), *list(other.model)[1:])}, r"0\.weight has shape \[8, 6\] in it and \[8, 7\]"),
    )
    before = copy.deepcopy((states(other), torch.get_rng_state()))
    for wrong, message in cases:
        with pytest.raises(CheckpointError, match=message):
            checkpoints.load(**{**other.parts(), **wrong})
        assert_equal(before, (states(other), torch.get_rng_state()))


@BOTH
def test_not_strict(tmp_path: Path, sharded: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    Checkpoints(tmp_path, sharded=sharded).save(1, model=model)
    other = nn.ModuleDict({"0": nn.Linear(2, 2), "head": nn.Linear(2, 1, bias=False)})
    restored = Checkpoints(tmp_path).load(model=other, strict=False)
    assert restored is not None
    assert restored.weights.missing == ("head.weight",) and restored.weights.unexpected == ("1.weight", "1.bias")
    assert same_bits(other["0"].weight, model[0].weight)  # type: ignore[arg-type]


@BOTH
def test_wrappers_leave_no_trace(tmp_path: Path, sharded: bool) -> None:
    compiled = torch.compile(nn.Sequential(nn.Linear(2, 2)), backend="eager")
    Checkpoints(tmp_path, sharded=sharded).save(1, model=nn.DataParallel(compiled))  # type: ignore[arg-type]
    plain, again = nn.Sequential(nn.Linear(2, 2)), torch.compile(nn.Sequential(nn.Linear(2, 2)), backend="eager")
    for model in (plain, again):
        restored = Checkpoints(tmp_path).load(model=model)  # type: ignore[arg-type]
        assert restored is not None and not restored.weights.repaired
    assert same_bits(plain[0].weight, compiled._orig_mod[0].weight)  # type: ignore[attr-defined, index]


@BOTH
def test_prefixes_are_repaired_with_the_optimizer(tmp_path: Path, sharded: bool) -> None:
    class Task(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(3, 2)

    task = Task()
    optimizer = torch.optim.Adam(task.parameters())
    task.model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    Checkpoints(tmp_path, sharded=sharded).save(1, model=task, optimizer=optimizer)
    model = nn.Linear(3, 2)
    other = torch.optim.Adam(model.parameters(), lr=7)
    with pytest.warns(UserWarning, match=r"stripped 'model\.' from all 2 names"):
        restored = Checkpoints(tmp_path).load(model=model, optimizer=other)
    assert restored is not None and restored.weights.repaired == "stripped 'model.' from all 2 names"
    assert_equal(dict(task.model.named_parameters()), dict(model.named_parameters()))
    assert_equal(optimizer.state_dict(), other.state_dict())


class Opaque:
    """Pickles itself as a call."""

    def __reduce__(self) -> Any:
        return print, ("code has run",)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"best": np.float64(0.5)}, r"extra\['best'\] is a numpy.float64.*float\(number\)"),
        ([1, {"x": np.ones(2)}], r"extra\[1\]\['x'\] is a numpy.ndarray.*from_numpy"),
        (Path("x"), "extra is a pathlib"),
        ({"f": lambda: 0}, r"extra\['f'\] is a function"),
        (Opaque(), "extra is a .*Opaque"),
        ({"ema": nn.Linear(1, 1)}, r"extra\['ema'\] is a torch.nn.modules.linear.Linear.*save its state_dict"),
    ],
)
@BOTH
def test_what_could_run_code_is_refused(tmp_path: Path, sharded: bool, extra: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Checkpoints(tmp_path, sharded=sharded).save(1, extra=extra)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sharded", [False, True])
def test_loading_runs_no_code(tmp_path: Path, sharded: bool, capsys: pytest.CaptureFixture[str]) -> None:
    import hashlib
    import json
    import pickle

    path = Checkpoints(tmp_path, sharded=sharded).save(1, model=nn.Linear(1, 1), extra=1)
    name = "shards/.metadata" if sharded else "model.pt"
    if sharded:
        (path / name).write_bytes(pickle.dumps(Opaque()))
    else:
        torch.save(Opaque(), path / name)
    manifest = json.loads((path / "manifest.json").read_text())
    content = (path / name).read_bytes()
    manifest["files"][name] = [len(content), hashlib.sha256(content).hexdigest()]
    (path / "manifest.json").write_text(json.dumps(manifest))
    for load in (
        lambda: Checkpoints(tmp_path).load(model=nn.Linear(1, 1)),
        lambda: checkpoint.load_weights(nn.Linear(1, 1), path),
    ):
        with pytest.raises(CheckpointError, match="without running code|not part of a checkpoint's metadata"):
            load()
    assert capsys.readouterr().out == ""


def test_wrong_objects(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"loader is a list_iterator.*ResumableLoader"):
        Checkpoints(tmp_path).save(1, loader=iter([]))
    with pytest.raises(TypeError, match="model must be a torch.nn.Module, not a dict"):
        Checkpoints(tmp_path).save(1, model={})  # type: ignore[arg-type]


def test_inside_of_a_step(tmp_path: Path) -> None:
    """What is pending runs before it is saved."""
    model, x = nn.Linear(4, 4), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    checkpoints = Checkpoints(tmp_path)
    for step in range(8):
        with markstep.step(backend="interpreter", rng="torch"):
            loss = nn.functional.dropout(model(x), 0.5).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            checkpoints.save(step, model=model, optimizer=optimizer, extra=loss.detach())
        state = torch.get_rng_state()
        other = nn.Linear(4, 4)
        restored = checkpoints.load(model=other)
        assert restored is not None and same_bits(restored.extra, loss)
        assert_equal(model.state_dict(), other.state_dict())
        assert torch.equal(torch.get_rng_state(), state)


def test_stateful_loader_of_another_kind(tmp_path: Path) -> None:
    class Loader:
        position = 3

        def state_dict(self) -> dict[str, Any]:
            return {"position": self.position}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.position = state["position"]

    Checkpoints(tmp_path).save(1, loader=[Loader(), ResumableLoader([1, 2])])
    loader = Loader()
    loader.position = 0
    Checkpoints(tmp_path).load(loader=[loader, ResumableLoader([1, 2])])
    assert loader.position == 3
