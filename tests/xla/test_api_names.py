"""torch_xla's import names: everything imports, deprecated names warn, what needs XLA says what to use instead."""

import importlib
import importlib.metadata
import warnings
from pathlib import Path

import pytest
import torch

from markstep.compat import names_folder
from markstep.compat.exposing import expose_torch_xla

expose_torch_xla()

import torch_xla  # noqa: E402
import torch_xla.core.xla_model as xm  # noqa: E402
import torch_xla.runtime as xr  # noqa: E402

FILES = sorted((names_folder() / "torch_xla").rglob("*.py"))


def _module(path: Path) -> str:
    return ".".join(path.relative_to(names_folder()).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("name", [_module(p) for p in FILES])
def test_every_module_imports_and_has_what_it_lists(name: str) -> None:
    module = importlib.import_module(name)
    for exported in getattr(module, "__all__", []):
        getattr(module, exported)


def test_package_metadata_is_found() -> None:
    assert importlib.metadata.version("torch_xla") == torch_xla.__version__ == "2.9.0"


@pytest.mark.parametrize(
    ("call", "release", "result"),
    [
        (xm.xrt_world_size, "2.5", 1),
        (xm.get_ordinal, "2.5", 0),
        (xm.xla_device, "2.8", torch.device("xla:0")),
        (lambda: xm.parse_xla_device("xla:0"), "2.5", ("xla", 0)),
        (lambda: xm.get_xla_supported_devices("CPU"), "2.3", ["xla:0"]),
        (xr.using_pjrt, "2.2", True),
        (lambda: importlib.import_module("torch_xla.experimental.pjrt").world_size(), "2.1", 1),
    ],
)
def test_deprecated_names_work_and_name_the_release(call, release, result) -> None:
    with pytest.warns(DeprecationWarning, match=f"deprecated since torch_xla {release}: use "):
        assert call() == result


def test_current_names_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch_xla.device() == torch.device("xla:0")
        assert torch_xla.devices() == [torch.device("xla:0")]
        assert (xr.world_size(), xr.global_ordinal(), xr.local_ordinal()) == (1, 0, 0)


@pytest.mark.parametrize(
    "name", ["core.xla_builder.mkop", "stablehlo.save_as_stablehlo", "distributed.spmd.Mesh", "experimental.custom_kernel.gmm"]
)
def test_what_needs_xla_says_so_at_the_call(name: str) -> None:
    module, _, attribute = f"torch_xla.{name}".rpartition(".")
    with pytest.raises(NotImplementedError, match="needs XLA itself"):
        getattr(importlib.import_module(module), attribute)(1, 2)


def test_another_device_is_refused() -> None:
    with pytest.raises(RuntimeError, match="a process has the one device xla:0"):
        torch_xla.device(1)


def test_hardware_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARKSTEP_XLA_HARDWARE", "TPU")
    assert xm.xla_device_hw("xla:0") == xr.device_type() == "TPU"
    assert xm.xla_real_devices() == ["TPU:0"]
