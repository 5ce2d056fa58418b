"""Saving tensors of two runs of a model under names, and comparing them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from markstep.xla.structures import to_cpu

_folder: Path | None = None
_step: int | None = None
_unnamed: Counter[str] = Counter()


def configure(save_dir: str | None) -> None:
    """Chooses the folder for `save`; None switches it off. It is MARKSTEP_COMPARE_DIR before the first call."""
    global _folder
    _folder = Path(save_dir) if save_dir else None
    _unnamed.clear()


def save(name: str | None, tensor: torch.Tensor, step: int | None = None) -> None:
    """Saves a tensor.

    Args:
        name: of the tensor; None gives a number.
        tensor: of any device.
        step: training step; a later save of the same name without a step replaces an earlier one.
    """
    global _folder
    if _folder is None and os.environ.get("MARKSTEP_COMPARE_DIR"):
        _folder = Path(os.environ["MARKSTEP_COMPARE_DIR"])
    if _folder is None:
        return
    if name is None:
        name = f"tensor_{_unnamed[str(step)]}"
        _unnamed[str(step)] += 1
    folder = _folder / (f"step_{step}" if step is not None else "step_none")
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(to_cpu(tensor.detach()), folder / f"{name}.pt")


def compare_tensors(
    tensor1: torch.Tensor, tensor2: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-8, max_diffs: int = 25
) -> str:
    """A report about elements that differ, empty if none does. At most `max_diffs` are listed."""
    if tensor1.shape != tensor2.shape or tensor1.dtype != tensor2.dtype:
        return f"{tensor1.dtype} {tuple(tensor1.shape)} against {tensor2.dtype} {tuple(tensor2.shape)}\n"
    differ = ~torch.isclose(tensor1, tensor2, rtol=rtol, atol=atol, equal_nan=True)
    places = differ.nonzero().tolist()
    if not places:
        return ""
    lines = [f"{len(places)} of {tensor1.numel()} elements differ"]
    lines += [f"  {tuple(i)}: {tensor1[tuple(i)].item()} against {tensor2[tuple(i)].item()}" for i in places[:max_diffs]]
    return "\n".join(lines) + "\n"


def tensor_file_compare(path1: Any, path2: Any, rtol: float = 1e-5, atol: float = 1e-8, max_diffs: int = 25) -> str:
    """`compare_tensors` of two files."""
    return compare_tensors(torch.load(path1), torch.load(path2), rtol=rtol, atol=atol, max_diffs=max_diffs)


def compare(save_dir1: str, save_dir2: str, rtol: float = 1e-5, atol: float = 1e-8, max_diffs: int = 25) -> str:
    """A report about two folders of tensors, empty if they agree."""
    one, two = ({str(p.relative_to(folder)): p for p in sorted(Path(folder).rglob("*.pt"))} for folder in (save_dir1, save_dir2))
    report = "".join(f"{name} is only in {save_dir1}\n" for name in one if name not in two)
    report += "".join(f"{name} is only in {save_dir2}\n" for name in two if name not in one)
    for name in one:
        if name in two and (text := tensor_file_compare(one[name], two[name], rtol, atol, max_diffs)):
            report += f"{name}: {text}"
    return report
