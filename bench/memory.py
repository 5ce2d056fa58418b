"""Memory of this process, in bytes."""

from __future__ import annotations

from pathlib import Path

import torch


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(f"/proc/self/status has no {field}: the kernel is not Linux as we know it")


def peak() -> int:
    """The most physical memory so far, or since `restart_peak` (VmHWM)."""
    return _status("VmHWM")


def anonymous() -> int:
    """What is held now and is not a mapped file (RssAnon)."""
    return _status("RssAnon")


def peak_allocated() -> int | None:
    """The most that torch's allocator on CUDA has held; None without CUDA."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None


def restart_peak() -> None:
    """`peak` and `peak_allocated` start anew (proc(5), clear_refs; without the right to do so the peak goes on)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
