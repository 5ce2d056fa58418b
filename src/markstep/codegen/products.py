"""Matrix products in fp32 with the faster of two libraries.

PyTorch gives them to MKL, which leaves much of an AMD processor unused; oneDNN, which PyTorch brings along for other dtypes,
computes the same products 1.2 to 2.2 times as fast there. Which is faster is measured where it is needed: the first calls with
operands of a certain shape and layout take turns, and the winner is kept in the cache directory. Products are summed up in
another order, so results differ by roundings of fp32.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from markstep.record import native

log = logging.getLogger("markstep")
_TRIES = 3  # calls of each library, of which the fastest counts
_ADVANTAGE = 0.97  # oneDNN must take less than this part of MKL's time
_FEWEST = 1 << 18  # multiplications; below, looking for the faster library costs more than it brings
_MOST_KEYS = 4096
_FILE = "products.jsonl"

_Key = tuple[Any, ...]
_Run = Callable[[Tensor, Tensor, Tensor, float], Any]


def _mkl(a: Tensor, b: Tensor, out: Tensor, beta: float) -> None:
    if a.dim() == 3:
        torch.bmm(a, b, out=out) if beta == 0 else torch.baddbmm(out, a, b, out=out)
    else:
        torch.mm(a, b, out=out) if beta == 0 else torch.addmm(out, a, b, out=out)


class _Contest:
    """The first calls of one kind of product."""

    def __init__(self, rival: _Run) -> None:
        self.runs: tuple[_Run, _Run] = (_mkl, rival)
        self.seconds: list[list[float]] = [[], []]

    def run(self, a: Tensor, b: Tensor, out: Tensor, beta: float) -> int | None:
        """Computes; returns the number of the winner once it is known."""
        which = sum(map(len, self.seconds)) % 2
        start = time.perf_counter()
        self.runs[which](a, b, out, beta)
        self.seconds[which].append(time.perf_counter() - start)
        if len(self.seconds[1]) < _TRIES:
            return None
        mkl, rival = map(min, self.seconds)
        return int(rival < _ADVANTAGE * mkl)


class Chooser:
    """Knows for every kind of product which library is faster.

    Args:
        rival: the product by oneDNN, `out = beta * out + a @ b`; None where PyTorch was built without it.
        folder: where the winners are kept; None to forget them.
    """

    def __init__(self, rival: _Run | None, folder: Path | None) -> None:
        self.rival, self.folder = rival, folder
        self._known: dict[_Key, _Run | _Contest] = {}
        self._kinds: dict[str, _Run | _Contest] = {}
        self._before: dict[str, int] | None = None

    def compute(self, a: Tensor, b: Tensor, out: Tensor, beta: float = 0) -> Tensor:
        """`out = beta * out + a @ b` for matrices or batches of them; beta is 0 or 1."""
        if self.rival is None or out.dtype is not torch.float32 or not out.is_cpu:
            _mkl(a, b, out, beta)
            return out
        key = (a.shape, a.stride(), b.shape, b.stride(), out.stride(), beta)
        run = self._known.get(key) or self._begin(key, a, b, out, beta)
        if type(run) is _Contest:
            winner = run.run(a, b, out, beta)
            if winner is not None:
                kind = _kind(a, b, beta)
                self._kinds[kind] = run.runs[winner]
                self._known.clear()
                self._keep(kind, winner)
        else:
            run(a, b, out, beta)  # type: ignore[operator]
        return out

    def _begin(self, key: _Key, a: Tensor, b: Tensor, out: Tensor, beta: float) -> _Run | _Contest:
        assert self.rival is not None
        run: _Run | _Contest = _mkl
        if _is_dense(a) and _is_dense(b) and out.is_contiguous() and out.numel() * a.shape[-1] >= _FEWEST:
            if self._before is None:
                self._before = self._read()
            kind = _kind(a, b, beta)
            winner = self._before.get(kind)
            run = self._kinds.setdefault(kind, _Contest(self.rival) if winner is None else (_mkl, self.rival)[winner])
        if len(self._known) >= _MOST_KEYS:
            self._known.clear()
        self._known[key] = run
        return run

    def _read(self) -> dict[str, int]:
        """What earlier processes found out; lines that nobody can read are skipped, a file of somebody else is ignored."""
        found: dict[str, int] = {}
        with contextlib.suppress(OSError, ValueError):
            path = self._path()
            if path is not None and path.stat().st_uid == os.getuid():
                for line in path.read_text().splitlines():
                    with contextlib.suppress(ValueError, TypeError, AttributeError):
                        entry = json.loads(line)
                        if entry["winner"] in (0, 1):
                            found[str(entry["product"])] = entry["winner"]
        return found

    def _keep(self, kind: str, winner: int) -> None:
        path = self._path()
        if path is None:
            return
        line = json.dumps({"product": kind, "winner": winner}) + "\n"
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(file, line.encode())  # one write, so that processes do not mix up their lines
            finally:
                os.close(file)
        except OSError as error:
            log.info("which library is faster is not kept: %s", error)

    def _path(self) -> Path | None:
        return None if self.folder is None else self.folder / _FILE


def _is_dense(t: Tensor) -> bool:
    """Rows or columns lie together, and nothing overlaps."""
    rows, columns = t.stride()[-2:]
    height, width = t.shape[-2:]
    return (columns == 1 and rows >= width) or (rows == 1 and columns >= height)


def _kind(a: Tensor, b: Tensor, beta: float) -> str:
    """Products that are alike: sizes to their two leading bits, layouts, whether something is added, and the machine."""
    sizes = [n >> (n.bit_length() - 2) << (n.bit_length() - 2) if n > 3 else n for n in (*a.shape, b.shape[-1])]
    layouts = "".join("r" if t.stride(-1) == 1 else "c" for t in (a, b))
    machine = f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()} threads"
    return f"{machine} {'x'.join(map(str, sizes))} {layouts}{' added' if beta else ''}"


_chooser: Chooser | None = None


def chooser(folder: Path | None = None) -> Chooser:
    """The one of this process; the first call with a folder decides where it keeps what it finds out."""
    global _chooser
    if _chooser is None:
        module = native.loaded()
        rival = module.onednn_product if module is not None and module.has_onednn_product() else None
        _chooser = Chooser(rival, folder)
    elif _chooser.folder is None:
        _chooser.folder = folder
    return _chooser


def mm(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    """torch.mm."""
    return chooser().compute(a, b, out)


def addmm(bias: Tensor, a: Tensor, b: Tensor, *, alpha: float = 1, beta: float = 1, out: Tensor) -> Tensor:
    """torch.addmm; also torch.baddbmm."""
    if alpha != 1 or beta != 1 or out.dtype is not torch.float32:
        function = torch.addmm if a.dim() == 2 else torch.baddbmm
        return function(bias, a, b, alpha=alpha, beta=beta, out=out)
    return chooser().compute(a, b, out.copy_(bias), 1)


# In place of what generated code calls for matrix products.
EXTERN = SimpleNamespace(mm=mm, bmm=mm, addmm=addmm, baddbmm=addmm)
