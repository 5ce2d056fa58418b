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
from torch_xla.experimental import custom_kernel  # noqa: E402

from markstep.xla import env  # noqa: E402

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


def test_products_over_any_dimensions() -> None:
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    x, y = a.to("xla"), b.to("xla")
    torch.testing.assert_close(torch_xla._XLAC._xla_dot_general(x, y, (([2], [1]), ([0], [0]))).cpu(), a @ b)
    torch.testing.assert_close(
        torch_xla._XLAC._xla_dot_general(x, y, (([0, 2], [0, 1]), ())).cpu(), torch.einsum("bij,bjk->ik", a, b)
    )
    assert torch_xla._XLAC._get_xla_tensor_shape_type(x) == "f32"
    assert torch_xla._XLAC._get_xla_tensor_dimension_size(x, 1).item() == 3


@pytest.mark.parametrize("length", [4, 9])
def test_repeating_to_a_length(length: int) -> None:
    x, repeats = torch.arange(4, device="xla"), torch.tensor([2, 0, 3, 1], device="xla")
    got = custom_kernel.repeat_with_fixed_output_size(x, repeats, length)
    assert got.tolist() == [0, 0, 2, 2, 2, 3, 3, 3, 3][:length]


@pytest.mark.parametrize("name", ["XLA_USE_BF16", "XLA_DOWNCAST_BF16"])
def test_variables_for_types_are_ignored_aloud(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.warns(UserWarning, match=f"{name} is ignored"):
        env.warn_of_types()


@pytest.mark.parametrize(("name", "release"), [("using_pjrt", "2.5"), ("xla_device", "2.8")])
def test_gone_names_work_and_name_the_release(name: str, release: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"is gone since torch_xla {release}: use "):
        assert getattr(xr, name)()


def test_run_multiprocess_gives_results_by_ordinal() -> None:
    from torch_xla._internal import pjrt

    assert pjrt.run_multiprocess(divmod, 7, 3) == {0: (2, 1)}


def test_nms() -> None:
    from torch_xla.core.functions import nms

    boxes = torch.tensor([[0, 0, 2, 2], [0, 0, 2, 1.9], [5, 5, 6, 6], [0, 0, 2, 2.1], [9, 9, 8, 8]], device="xla")
    scores = torch.tensor([0.8, 0.9, 0.7, 0.6, 0.1], device="xla")
    chosen, count = nms(boxes, scores, 0.5, 0.5, 4)
    assert chosen.tolist() == [1, 2, 0, 0]
    assert count.item() == 2


def test_patched_linear_has_the_gradients_of_linear() -> None:
    from torch_xla.distributed.fsdp.utils import XLAPatchedLinear

    tensors = [torch.randn(s, device="xla", requires_grad=True) for s in ((4, 5, 3), (2, 3), (2,))]
    expected = torch.autograd.grad(torch.nn.functional.linear(*tensors).square().sum(), tensors)
    found = torch.autograd.grad(XLAPatchedLinear.apply(*tensors).square().sum(), tensors)
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a.cpu(), b.cpu())
