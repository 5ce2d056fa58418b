"""Where the time of a step goes. Nothing about time is asserted."""

from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import torch
from bench.models import CASES
from bench.table import details
from bench.training import Training
from bench.where import PYTHON, group, split

from markstep.codegen.executable import Compiled


def test_groups() -> None:
    for name, title in {
        "aten::addmm": "matrix products",
        "mkldnn::_linear_pointwise": "matrix products",
        "aten::mkldnn_convolution": "convolutions",
        "aten::convolution_backward": "convolutions",
        "aten::_fused_adamw_": "optimizer",
        "aten::_foreach_norm": "optimizer",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward": "attention",
        "aten::mkldnn_rnn_layer": "recurrent layers",
        "aten::copy_": "copies and casts",
        "aten::to": "copies and casts",
        "cpp_fused_add_native_layer_norm_3": "generated kernels",
        "aten::native_layer_norm": "other operators",
        "aten::topk": "other operators",
    }.items():
        assert group(name) == title


def test_split_of_an_eager_step() -> None:
    training = Training(CASES["mlp"].tiny(), "fp32", "cpu")
    training.advance()
    figures = split(training, 3)
    assert {"matrix products", "optimizer", PYTHON} <= set(figures["groups"])
    assert all(milliseconds >= 0 for milliseconds in figures["groups"].values())
    assert sum(figures["groups"].values()) >= figures["step_ms"] * 0.999
    assert any(name == "aten::mm" for name, _ in figures["dearest"])
    row = {"model": "mlp", "dtype": "fp32", "contender": "eager", "where": figures}
    assert "matrix products" in details([row])


def test_generated_kernels_have_names_while_they_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    scope: dict[str, Any] = {"cpp_fused_sin_0": kernel}
    call = FunctionType(compile("cpp_fused_sin_0(x)", "", "eval"), {**scope, "x": torch.ones(4)})
    graph = SimpleNamespace(steps=[(None, (None, call)), (None, None)])
    monkeypatch.setattr(Compiled, "run", lambda self, session: call())
    training = SimpleNamespace(advance=lambda: Compiled.run(graph, None))  # type: ignore[arg-type]
    figures = split(training, 2)  # type: ignore[arg-type]
    assert call.__globals__["cpp_fused_sin_0"] is kernel
    assert figures["groups"]["generated kernels"] > 0
