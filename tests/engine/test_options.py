"""Settings: arguments, environment variables, and the switch that turns everything off."""

import os
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import torch
from tests.helpers import EXACT

import markstep
from markstep.engine.options import PASSES, resolve


def test_defaults_and_freezing() -> None:
    options = markstep.Options()
    assert (options.backend, options.rng, options.background, options.replay) == ("inductor", "hash", True, False)
    with pytest.raises(FrozenInstanceError):
        options.rng = "torch"  # type: ignore[misc]


def test_unknown_options_are_listed() -> None:
    with pytest.raises(TypeError, match="unknown option 'speed': the options are backend, rng, .*, replay, arena"):
        markstep.compile(lambda: None, speed=11)
    with pytest.raises(TypeError, match="unknown option"):
        markstep.step(speed=11)


@pytest.mark.parametrize(("name", "value"), [("backend", "cuda"), ("rng", "numpy")])
def test_unknown_values_are_listed(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{name}='{value}' is not known: use one of"):
        markstep.compile(lambda: None, **{name: value})


def test_environment_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MARKSTEP_BACKEND", "interpreter")
    monkeypatch.setenv("MARKSTEP_RNG", "torch")
    monkeypatch.setenv("MARKSTEP_BACKGROUND", "0")
    monkeypatch.setenv("MARKSTEP_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MARKSTEP_REPLAY", "1")
    options = resolve({})
    assert (options.backend, options.rng, options.background, options.replay) == ("interpreter", "torch", False, True)
    assert options.cache_dir == tmp_path
    assert resolve({"backend": "eager"}).backend == "eager", "arguments win over the environment"
    monkeypatch.setenv("MARKSTEP_REPLAY", "perhaps")
    with pytest.raises(ValueError, match="MARKSTEP_REPLAY='perhaps' is not a switch: use 0 or 1"):
        resolve({})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("all", set(PASSES)),
        ("none", set()),
        ("loss_head", {"loss_head"}),
        ("all, -loss_head", set(PASSES) - {"loss_head"}),
        ("attention,loss_head,-attention", {"loss_head"}),
        ("-loss_head,all", set(PASSES)),
    ],
)
def test_passes(text: str, names: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve({"passes": text}).enabled_passes == names
    monkeypatch.setenv("MARKSTEP_PASSES", text)
    assert resolve({}).enabled_passes == names


@pytest.mark.parametrize("text", ["fast", "all,-fast", "", "all;none"])
def test_unknown_passes_are_listed(text: str) -> None:
    with pytest.raises(
        ValueError, match="is not known: use all, none, or attention, channels_last, loss_head, narrow_products, product_library"
    ):
        markstep.compile(lambda: None, passes=text)


def test_unusable_cache_directory_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    used = markstep.Options(cache_dir=file / "below").prepared_cache_dir()
    assert used.is_dir() and used.stat().st_mode & 0o077 == 0
    assert "the cache directory cannot be used" in markstep.explain().warnings[-1]


def test_cache_directory_is_for_its_owner_only(tmp_path: Path) -> None:
    wide = tmp_path / "wide"
    wide.mkdir(mode=0o755)
    assert markstep.Options(cache_dir=wide).prepared_cache_dir() == wide
    assert wide.stat().st_mode & 0o077 == 0


def test_eager_backend_only_records() -> None:
    x = torch.ones(3)
    step = markstep.compile(lambda: x.add_(1), backend="eager")
    for i in range(8):
        assert step()[0] == 2 + i
    report = markstep.explain()
    assert report.compiled_steps == 0 and report.eager_steps == 8 and report.programs


def test_switched_off_is_the_function_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARKSTEP", "0")

    def step() -> None: ...

    assert markstep.compile(step) is step
    with pytest.raises(TypeError, match="unknown option"):
        markstep.compile(step, speed=11)
    with markstep.step(), markstep.pause():
        markstep.sync()


SCRIPT = """
import torch
import torch._dynamo  # wraps torch.manual_seed
before = {n: getattr(torch.Tensor, n) for n in ("numpy", "tolist", "__repr__")}, torch.get_rng_state, torch.manual_seed
import markstep
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
def step():
    loss = model(torch.randn(4, 6)).square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    return loss
compiled = markstep.compile(step)
assert compiled is step
for _ in range(6):
    compiled()
    with markstep.step():
        step()
markstep.sync()
after = {n: getattr(torch.Tensor, n) for n in ("numpy", "tolist", "__repr__")}, torch.get_rng_state, torch.manual_seed
assert before == after, "something was patched"
import sys
assert not [m for m in sys.modules if "_native" in m and "markstep" in m]
assert not markstep.explain().programs
print(sum(p.double().sum().item() for p in model.parameters()))
"""


def test_switched_off_is_native_pytorch_in_a_process(tmp_path: Path) -> None:
    """MARKSTEP=0: nothing is built, nothing patched, and the result is that of a script without Markstep."""
    path = os.pathsep.join([str(Path(markstep.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "MARKSTEP": "0", "MARKSTEP_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "cache").exists()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(12):
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert float(done.stdout) == sum(p.double().sum().item() for p in model.parameters())


def test_places_are_told_apart() -> None:
    """Two `with markstep.step()` lines have programs of their own; the same line with other options too."""
    x = torch.ones(3)
    for _ in range(6):
        with markstep.step(**EXACT):
            x.add_(1)
        with markstep.step(**EXACT):
            x.mul_(0.5)
    assert torch.equal(x, torch.full((3,), 1.0))
    assert len(markstep.explain().programs) == 2
    assert markstep.explain().compiled_steps == 8
