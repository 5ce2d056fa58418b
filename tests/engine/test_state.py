"""Saving, loading and copying between steps."""

import copy
import io
import pickle
from typing import Any

import torch
from tests.helpers import compare
from torch import nn
from torch.nn import functional as F


def make_training() -> Any:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    x, y = torch.randn(5, 6), torch.randint(3, (5,))

    def step(i: int) -> Any:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss

    return step, {"model": model, "optimizer": optimizer, "schedule": schedule}


def test_copies_and_files_between_steps() -> None:
    kept: list[Any] = []

    def after(i: int, state: Any) -> None:
        if i % 3 == 0:
            kept.append(copy.deepcopy(state["model"]))
            kept.append(copy.deepcopy(state["optimizer"].state_dict()))
            file = io.BytesIO()
            torch.save({k: v.state_dict() for k, v in state.items()}, file)
            assert pickle.loads(pickle.dumps(state["model"])).training
        assert all(type(p) is nn.Parameter for p in state["model"].parameters())
        assert all(p.grad is None or type(p.grad) is torch.Tensor for p in state["model"].parameters())

    compare(make_training, after=after)


def test_loading_a_checkpoint_between_steps() -> None:
    """`load_state_dict` copies into the weights and replaces the optimizer's state with other tensors."""
    saved: dict[str, Any] = {}

    def after(i: int, state: Any) -> None:
        if i == 6:
            file = io.BytesIO()
            torch.save({k: v.state_dict() for k, v in state.items()}, file)
            saved["file"] = file
        if i in (11, 15):
            saved["file"].seek(0)
            for k, v in torch.load(saved["file"]).items():
                state[k].load_state_dict(v)

    compare(make_training, steps=24, after=after, recorded=6)


def test_loading_with_assign_and_new_parameters() -> None:
    def after(i: int, state: Any) -> None:
        if i == 9:
            old = list(state["model"].parameters())
            weights = {k: v.clone() * 0.5 for k, v in state["model"].state_dict().items()}
            state["model"].load_state_dict(weights, assign=True)
            optimizer = state["optimizer"]
            optimizer.param_groups[0]["params"] = list(state["model"].parameters())
            for before, new in zip(old, state["model"].parameters(), strict=True):
                optimizer.state[new] = optimizer.state.pop(before)

    compare(make_training, steps=24, after=after, recorded=10)


def test_resuming_in_a_new_loop() -> None:
    """A second model continues from the first one's checkpoint under the same compiled function."""

    def make(wrap: Any) -> Any:
        train = wrap(lambda step, i: step(i))
        runs = [make_training(), make_training()]

        def step(i: int) -> Any:
            if i == 10:
                for k, v in runs[1][1].items():
                    v.load_state_dict(copy.deepcopy(runs[0][1][k].state_dict()))
            return train(runs[i // 10][0], i)

        return step, [runs[0][1], runs[1][1]]

    compare(make, wraps_itself=True, recorded=6)


def test_copy_and_state_dict_inside_the_step() -> None:
    def make() -> Any:
        inner, state = make_training()
        best: dict[str, Any] = {}

        def step(i: int) -> Any:
            loss = inner(i)
            if i % 4 == 3:
                best["copy"] = copy.deepcopy(state["model"])
                best["weights"] = {k: v.clone() for k, v in state["model"].state_dict().items()}
                file = io.BytesIO()
                torch.save(state["model"].state_dict(), file)
                file.seek(0)
                best["loaded"] = torch.load(file)
            return loss

        return step, [state, best]

    compare(make, recorded=10, share=0.5)


def test_ordinary_tensors_after_the_step() -> None:
    """Nothing of Markstep stays in what a step leaves: types, storages, grad functions, pickling, numpy."""

    def make() -> Any:
        step, state = make_training()

        def checked(i: int) -> Any:
            loss = step(i)
            return loss

        return checked, state

    def after(i: int, state: Any) -> None:
        weight = state["model"][0].weight
        assert weight.data_ptr() and weight.detach().numpy().shape == (8, 6)
        assert weight.untyped_storage().nbytes() == 192 and weight._base is None
        moments = state["optimizer"].state[weight]
        assert type(moments["exp_avg"]) is torch.Tensor and moments["exp_avg"].data_ptr()

    compare(make, after=after)


def test_moving_the_model_between_dtypes() -> None:
    def after(i: int, state: Any) -> None:
        if i == 9:
            state["model"].double()
            state["model"].float()

    compare(make_training, steps=20, after=after, recorded=6)
