"""What training scripts call: saving, optimizers that skip on the device, scaling, random numbers, SageMaker's settings."""

import json
import logging
import os

import pytest
import torch

from markstep.xla import (
    amp,
    control_flow,
    model,
    optimizer,
    profiler,
    rng,
    serialization,
    spawn,
    steps,
    syncfree,
    training_compiler,
)


def test_save_keeps_ties_and_loads_without_the_device(tmp_path) -> None:
    weight = torch.arange(4.0, device="xla")
    model.save({"a": weight, "tied": weight, "view": weight[1:], "n": 3}, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt")
    assert loaded["a"].device.type == "cpu" and loaded["a"].tolist() == [0, 1, 2, 3] and loaded["view"].tolist() == [1, 2, 3]
    assert loaded["a"].data_ptr() == loaded["tied"].data_ptr() and loaded["n"] == 3


def test_one_file_for_each_tensor(tmp_path) -> None:
    serialization.save({"a": torch.ones(2, device="xla"), "n": 3}, tmp_path / "x.pt")
    loaded = serialization.load(tmp_path / "x.pt")
    assert loaded["a"].tolist() == [1, 1] and loaded["n"] == 3


@pytest.mark.parametrize(
    ("skipping", "plain", "options"),
    [
        (syncfree.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
        (syncfree.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        (syncfree.Adam, torch.optim.Adam, {"lr": 0.1, "amsgrad": True}),
        (syncfree.AdamW, torch.optim.AdamW, {"lr": 0.1}),
    ],
)
def test_found_inf_skips_a_step(skipping, plain, options) -> None:
    one, two = torch.nn.Linear(3, 2).to("xla"), torch.nn.Linear(3, 2).to("xla")
    two.load_state_dict(one.state_dict())
    first, second = skipping(one.parameters(), **options), plain(two.parameters(), **options)
    x = torch.randn(4, 3).to("xla")
    for step in range(6):
        for module, opt in ((one, first), (two, second)):
            opt.zero_grad()
            module(x).square().sum().backward()
        if step % 2 == 0:
            optimizer.fetch_gradients(first)[0].fill_(float("nan"))
        else:
            second.step()
        first.step(found_inf=torch.tensor(float(step % 2 == 0), device="xla"))
        steps.sync()
    torch.testing.assert_close(one.weight.cpu(), two.weight.cpu(), rtol=1e-4, atol=1e-5)
    assert first.state[one.weight]["step"].device.type == "xla" and first.state[one.weight]["step"].item() == 3


@pytest.mark.parametrize("kind", [syncfree.SGD, torch.optim.SGD])
def test_the_scaler_skips_overflowing_steps(kind) -> None:
    weight = torch.nn.Parameter(torch.ones(2, device="xla"))
    opt, scaler = kind([weight], lr=1.0), amp.GradScaler(init_scale=4.0)
    for factor in (float("inf"), 1.0):
        opt.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(opt)
        scaler.update()
        steps.sync()
    assert weight.tolist() == [0, 0] and scaler.get_scale() == 2.0


def test_random_state_is_an_integer() -> None:
    rng.set_rng_state(7)
    first = torch.randn(2, device="xla").tolist()
    assert rng.get_rng_state() == 7
    with rng.fork_rng():
        torch.randn(5, device="xla")
    after = torch.randn(2, device="xla").tolist()
    torch.manual_seed(7)
    assert torch.randn(2, device="xla").tolist() == first and torch.randn(2, device="xla").tolist() == after


def test_full_graph_forbids_reading_values() -> None:
    x = torch.ones(2, device="xla")
    assert steps.compile(lambda t: t + 1, full_graph=True)(x).tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="Unexpected execution happens inside the compiled function"):
        steps.compile(lambda t: t.sum().item(), full_graph=True)(x)


def test_gradient_accumulation() -> None:
    one = torch.nn.Linear(3, 1).to("xla")
    x = torch.randn(4, 2, 3).to("xla")
    loss, count = control_flow.gradient_accumulation(
        lambda b, n: (one(b).square().mean(), n + 1), (x,), one, torch.tensor(0, device="xla")
    )
    got = one.weight.grad.clone()
    one.zero_grad()
    whole = one(x).square().mean()
    whole.backward()
    assert count.item() == 4
    torch.testing.assert_close(got.cpu(), one.weight.grad.cpu())
    torch.testing.assert_close(loss.cpu(), whole.detach().cpu())


def test_memory_is_that_of_the_process() -> None:
    info = model.get_memory_info()
    assert 1e7 < info["bytes_used"] <= info["peak_bytes_used"] and info["bytes_used"] < info["bytes_limit"]


def test_one_process_runs_here() -> None:
    assert spawn.spawn(lambda index, what: (index, what, os.getpid()), ("x",), nprocs=1) == (0, "x", os.getpid())


def _fails_in_one(index: int) -> None:
    from markstep.xla import collectives

    if index == 1:
        raise ValueError("broken in one")
    collectives.rendezvous("never")


def _sums(index: int) -> None:
    from markstep.xla import collectives

    t = torch.full((2,), float(index + 1), device="xla")
    assert collectives.all_reduce("sum", [t], scale=0.5)[0] is t and t.tolist() == [1.5, 1.5]
    assert collectives.all_gather(torch.tensor([index], device="xla")).tolist() == [0, 1]
    assert collectives.rendezvous("here", b"x" * index) == [b"", b"x"]


@pytest.mark.slow
def test_two_processes() -> None:
    spawn.spawn(_sums, nprocs=2)
    with pytest.raises(torch.multiprocessing.ProcessRaisedException, match="broken in one"):
        spawn.spawn(_fails_in_one, nprocs=2)


@pytest.mark.parametrize("enabled", [True, False])
def test_settings_of_sagemaker(enabled: bool, monkeypatch, tmp_path, caplog) -> None:
    for name in ("GPU_NUM_DEVICES", "XLA_METRICS_FILE", "PT_XLA_DEBUG", "XLA_IR_DEBUG", "XLA_HLO_DEBUG", "PT_XLA_DEBUG_FILE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("SM_TRAINING_COMPILER_CONFIGURED", "")
    monkeypatch.setenv("SM_OUTPUT_DATA_DIR", str(tmp_path))
    settings = {"sagemaker_training_compiler_enabled": enabled}
    if enabled:
        settings["sagemaker_training_compiler_debug_mode"] = True
    monkeypatch.setenv("SM_FRAMEWORK_PARAMS", json.dumps(settings))
    monkeypatch.setattr(training_compiler.log, "propagate", True)
    with caplog.at_level(logging.INFO, training_compiler.log.name):
        training_compiler.configure()
    assert "Found configuration for Training Compiler" in caplog.text
    assert ("Configuring SM Training Compiler..." in caplog.text) is enabled
    assert os.environ.get("XLA_METRICS_FILE") == (str(tmp_path / "compiler" / "XLA_METRICS_FILE.txt") if enabled else None)


def test_gradient_accumulation_refuses_a_step_that_writes_to_what_it_is_given() -> None:
    def train_step(batch: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n += 1
        return batch.sum(), n

    x = torch.ones(2, 2, device="xla", requires_grad=True)
    with pytest.raises(AssertionError, match="writes to a tensor that it was given"):
        control_flow.gradient_accumulation(train_step, (x,), torch.nn.Linear(1, 1), torch.tensor(0, device="xla"))


def test_autocast_to_a_type_that_the_hardware_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARKSTEP_XLA_HARDWARE", "TPU")
    with pytest.warns(UserWarning, match="TPU has no float16"), amp.autocast("xla", dtype=torch.float16):
        assert not torch.is_autocast_enabled("xla")


def test_a_step_does_not_end_inside_a_trace() -> None:
    with profiler.Trace("forward"), pytest.raises(RuntimeError, match=r"scope to be empty but it is forward\.1"):
        steps.sync()
    with profiler.Trace("forward"):
        steps.sync(reset_scope=False)
    with profiler.StepTrace("step"):
        torch.ones(2, device="xla")
    steps.sync()
