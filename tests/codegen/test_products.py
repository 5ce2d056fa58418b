"""Which library computes fp32 products: results are right with either, the faster one is kept, and nothing odd breaks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from markstep.codegen import products
from markstep.record import native


def operand(*shape: int, columns: bool) -> Tensor:
    """Random; with columns that lie together in memory instead of rows."""
    t = torch.randn(shape)
    return t.mT.contiguous().mT if columns else t


@pytest.mark.parametrize("columns", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_onednn_gives_the_same(columns: tuple[bool, bool], batch: tuple[int, ...], beta: float) -> None:
    module: Any = native.loaded()
    if not module.has_onednn_product():
        pytest.skip("PyTorch was built without oneDNN")
    torch.manual_seed(0)
    a, b = operand(*batch, 37, 65, columns=columns[0]), operand(*batch, 65, 19, columns=columns[1])
    out = torch.randn(*batch, 37, 19)
    expected = (out.double() if beta else 0) + a.double() @ b.double()
    module.onednn_product(a, b, out, beta)
    torch.testing.assert_close(out, expected.float(), rtol=1e-5, atol=1e-5)


def test_wrong_sizes_are_an_error() -> None:
    module: Any = native.loaded()
    with pytest.raises(RuntimeError, match="sizes do not fit"):
        module.onednn_product(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 3), 0.0)


class Clock:
    """Time passes only when a library computes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, mkl: float, rival: float) -> None:
        self.now, self.calls = 0.0, [0, 0]
        self.costs, self.original = (mkl, rival), products._mkl
        monkeypatch.setattr(products.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(products, "_mkl", lambda *args: self._run(0, *args))

    def rival(self, a: Tensor, b: Tensor, out: Tensor, beta: float) -> None:
        self._run(1, a, b, out, beta)

    def _run(self, which: int, a: Tensor, b: Tensor, out: Tensor, beta: float) -> None:
        self.now += self.costs[which]
        self.calls[which] += 1
        self.original(a, b, out, beta)


A, B = torch.randn(64, 128), torch.randn(128, 96)


@pytest.mark.parametrize(("rival", "winner"), [(0.5, 1), (1.0, 0), (2.0, 0)])
def test_the_faster_one_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rival: float, winner: int) -> None:
    clock = Clock(monkeypatch, 1.0, rival)
    chooser = products.Chooser(clock.rival, tmp_path)
    for rows in (64, 65, 66, 64, 64, 64, 64, 64, 64, 64):  # other numbers of rows, as of labelled tokens, are no other kind
        a = torch.randn(rows, 128)
        torch.testing.assert_close(chooser.compute(a, B, torch.empty(rows, 96)), a @ B)
    assert clock.calls[winner] == 7 and clock.calls[1 - winner] == 3

    second = products.Chooser(clock.rival, tmp_path)
    clock.calls = [0, 0]
    second.compute(A, B, torch.empty(64, 96))
    assert clock.calls[winner] == 1 and clock.calls[1 - winner] == 0, "what was measured before holds in the next process"


def test_small_ones_other_dtypes_and_odd_layouts_stay_with_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 1.0, 0.1)
    chooser = products.Chooser(clock.rival, None)
    overlapping = torch.randn(128 * 3).as_strided((128, 96), (1, 2))
    cases = [(A[:4], B[:, :4]), (A.bfloat16(), B.bfloat16()), (A, overlapping), (torch.randn(1, 128).expand(64, 128), B)]
    for a, b in cases:
        for _ in range(4):
            out = chooser.compute(a, b, torch.empty(a.shape[0], b.shape[1], dtype=a.dtype))
            torch.testing.assert_close(out, a @ b)
    assert clock.calls == [16, 0]


def test_a_damaged_or_unwritable_file_costs_only_another_measurement(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock(monkeypatch, 1.0, 0.5)
    file = tmp_path / "products.jsonl"
    file.write_bytes(b'{"product": 3}\nnot json\n[1]\n\xff\xfe\n')
    chooser = products.Chooser(clock.rival, tmp_path)
    for _ in range(8):
        chooser.compute(A, B, torch.empty(64, 96))
    assert clock.calls == [3, 5]
    chooser = products.Chooser(clock.rival, tmp_path / "gone")
    for _ in range(8):
        chooser.compute(A, B, torch.empty(64, 96))
    assert clock.calls == [6, 10]


def test_functions_have_the_signature_of_pytorchs() -> None:
    bias, a, b = torch.randn(96), torch.randn(2, 64, 128), torch.randn(2, 128, 96)
    out = products.addmm(bias, A, B, alpha=1, beta=1, out=torch.empty(64, 96))
    torch.testing.assert_close(out, torch.addmm(bias, A, B))
    torch.testing.assert_close(products.addmm(bias, A, B, alpha=2, out=torch.empty(64, 96)), torch.addmm(bias, A, B, alpha=2))
    torch.testing.assert_close(products.EXTERN.bmm(a, b, out=torch.empty(2, 64, 96)), a @ b)
    torch.testing.assert_close(products.EXTERN.baddbmm(bias, a, b, out=torch.empty(2, 64, 96)), torch.baddbmm(bias, a, b))
