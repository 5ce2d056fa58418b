"""PT_XLA_DEBUG says why a step ended, and what is new about a program."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from markstep.compat.exposing import expose_torch_xla

expose_torch_xla()

import torch_xla  # noqa: E402


def test_a_new_shape_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "debug"
    monkeypatch.setenv("PT_XLA_DEBUG_LEVEL", "1")
    monkeypatch.setenv("PT_XLA_DEBUG_FILE", str(file))
    torch_xla.sync()
    for i in range(8):
        (torch.ones(2 if i < 6 else 3, 4, device="xla") * 2).sum()
        torch_xla.sync()
    first, second = file.read_text().split("Compilation Cause")[1:]
    assert "Differs From Known Programs" not in first
    assert "user torch_xla.sync" in second and "test_debug_report.py" in second
    assert "3" in second.partition("Differs From Known Programs:")[2] and "instead of" in second
    assert "markstep/launch.py" not in second
