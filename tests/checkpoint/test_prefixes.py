"""Names of weights are repaired only if then all of them match."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from markstep.checkpoint import CheckpointError, load_weights
from markstep.checkpoint.prefixes import repair

CASES = [
    (["a.w", "b"], ["a.w", "b"], ""),
    (["module.a.w", "module.b"], ["a.w", "b"], "stripped 'module.' from all 2 names"),
    (["_orig_mod.module.a.w", "_orig_mod.module.b"], ["a.w", "b"], "stripped '_orig_mod.module.' from all 2 names"),
    (["a.w", "b"], ["module.a.w", "module.b"], "added 'module.' to all 2 names"),
    (["module.a"], ["_orig_mod.a"], "stripped 'module.' from and added '_orig_mod.' to all 1 names"),
    (["model.bert.model.x"], ["bert.model.x"], "stripped 'model.' from all 1 names"),
    (["module.bert.model.x"], ["bert.model.x"], "stripped 'module.' from all 1 names"),
    (["model.model.x", "model.y"], ["model.x", "y"], "stripped 'model.' from all 2 names"),
    (["0._orig_mod.w", "1.w"], ["0.w", "1.w"], "changed 1 of 2 names by known prefixes, for example '0._orig_mod.w' to '0.w'"),
    (["module.0._orig_mod.w", "module.1.w"], ["0.w", "1.w"], "changed 2 of 2 names by known prefixes, for example "),
]


@pytest.mark.parametrize(("saved", "wanted", "text"), CASES)
def test_repaired(saved: list[str], wanted: list[str], text: str) -> None:
    found = repair(saved, wanted)
    assert found is not None and found.text.startswith(text) and bool(found.text) == bool(text)
    assert list(found.names) == saved and list(found.names.values()) == wanted


@pytest.mark.parametrize(
    ("saved", "wanted"),
    [
        (["module.a", "b"], ["a", "b"]),  # not all have it
        (["module.a", "module.b"], ["a"]),
        (["module.a"], ["a", "b"]),
        (["other.a"], ["a"]),
        (["modulea"], ["a"]),
        (["a", "_orig_mod.a"], ["a"]),  # two names would become one
        (["bert.model.x"], ["bert.x"]),  # `model.` is not at the beginning
        (["model.a"], ["module.b"]),
    ],
)
def test_not_repaired(saved: list[str], wanted: list[str]) -> None:
    assert repair(saved, wanted) is None


NAMES = st.lists(st.sampled_from(["module", "model", "_orig_mod", "a", "b"]), min_size=1, max_size=4).map(".".join)


@settings(deadline=None, max_examples=60)
@given(st.sets(NAMES, max_size=4), st.sets(NAMES, max_size=4))
def test_a_repair_is_one_to_one_and_complete(saved: set[str], wanted: set[str]) -> None:
    found = repair(saved, wanted)
    if found is not None:
        assert set(found.names) == saved and sorted(found.names.values()) == sorted(wanted)
        for old, new in found.names.items():
            core = [[p for p in n.split(".") if p not in ("module", "model", "_orig_mod")] for n in (old, new)]
            assert core[0] == core[1]
        assert bool(found.text) == (saved != wanted)


@settings(deadline=None, max_examples=60)
@given(st.sets(NAMES, min_size=1, max_size=4), st.lists(st.sampled_from(["module.", "model."]), max_size=3).map("".join))
def test_every_prefix_of_all_names_is_found(names: set[str], prefix: str) -> None:
    if len({n.replace("_orig_mod.", "") for n in names}) == len(names) and not any(n.endswith("_orig_mod") for n in names):
        assert repair({prefix + n for n in names}, names) is not None
        assert repair(names, {prefix + n for n in names}) is not None


def test_weights_from_everywhere(tmp_path: Path) -> None:
    source = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    saved = nn.DataParallel(source).state_dict()
    torch.save(saved, tmp_path / "weights.pt")
    for given_as in (saved, tmp_path / "weights.pt", str(tmp_path / "weights.pt")):
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        with pytest.warns(UserWarning, match=r"stripped 'module\.' from all 7 names, so that they match the model's") as seen:
            loaded = load_weights(model, given_as)
        assert seen[0].filename == __file__
        assert loaded.repaired == "stripped 'module.' from all 7 names" and loaded.missing == loaded.unexpected == ()
        assert all(torch.equal(a, b) for a, b in zip(source.state_dict().values(), model.state_dict().values(), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_weights(nn.DataParallel(model), saved)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            {"module.weight": torch.ones(2, 2)},
            r"2 names are missing in it \(weight, bias\) and 1 name is unexpected \(module\.weight\)",
        ),
        ({"weight": torch.ones(2, 3), "bias": torch.ones(2)}, r"weight has shape \[2, 3\] in it and \[2, 2\] in the model"),
        ({"model": {"weight": 1}, "epoch": 3}, r"It holds dictionaries under model: pass the one with the weights"),
        ({}, r"2 names are missing in it \(weight, bias\)"),
    ],
)
def test_what_does_not_fit(state: dict[str, Any], message: str) -> None:
    model = nn.Linear(2, 2)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=message):
        load_weights(model, state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_not_strict_still_checks_shapes() -> None:
    model = nn.Linear(2, 2)
    loaded = load_weights(model, {"bias": torch.full((2,), 3.0), "head": torch.ones(1)}, strict=False)
    assert (loaded.missing, loaded.unexpected) == (("weight",), ("head",)) and model.bias.tolist() == [3, 3]
    with pytest.raises(CheckpointError, match="bias has shape"):
        load_weights(model, {"bias": torch.ones(3)}, strict=False)


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(CheckpointError, match="text"):
        load_weights(nn.Linear(1, 1), tmp_path / "text")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(TypeError, match="holds a list, not a state dict"):
        load_weights(nn.Linear(1, 1), tmp_path / "list.pt")
    with pytest.raises(FileNotFoundError):
        load_weights(nn.Linear(1, 1), tmp_path / "none.pt")


def test_versions_of_modules_are_kept() -> None:
    """BatchNorm's state before version 2 had no num_batches_tracked, and modules look at the version."""
    seen = []

    class Old(nn.Linear):
        _version = 7

        def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *args: Any) -> None:
            seen.append(metadata.get("version"))
            super()._load_from_state_dict(state, prefix, metadata, *args)

    load_weights(Old(1, 1), Old(1, 1).state_dict())
    with pytest.warns(UserWarning, match="stripped"):
        load_weights(Old(1, 1), nn.DataParallel(Old(1, 1)).state_dict())
    assert seen == [7, 7]
