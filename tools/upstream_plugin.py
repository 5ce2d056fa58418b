"""The pytest plugin of upstream.py: installs the device before a test module is imported and writes results as they come.

Results go to the file named by UPSTREAM_RESULTS, a JSON object a line, at once: a crash loses nothing. Tests of operators that
export an operator to StableHLO and run that get the exported program on the xla device in its place.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import torch
import torch_xla.stablehlo
from torch.utils._pytree import tree_map_only

import markstep.xla.device as device

device.install()


class _OnDevice:
    """An exported program that computes on the xla device, called with tensors of the CPU."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self.module = program.module()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, lambda t: t.to("xla"), (args, kwargs))
        return tree_map_only(torch.Tensor, lambda t: t.cpu(), self.module(*args, **kwargs))


torch_xla.stablehlo.exported_program_to_stablehlo = _OnDevice
_failures: dict[str, str] = {}
_seen: dict[str, str] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests that ran before the process of this file crashed."""
    done = set(json.loads(os.environ.get("UPSTREAM_DONE", "[]")))
    config.hook.pytest_deselected(items=[i for i in items if i.nodeid in done])
    items[:] = [i for i in items if i.nodeid not in done]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A module that cannot be imported."""
    if report.failed:
        _write(name=report.nodeid, outcome="import", reason=str(report.longrepr).strip().splitlines()[-1])


def pytest_runtest_logstart(nodeid: str) -> None:
    """Says what runs, in case it is the last thing that this process does."""
    _write(name=nodeid, outcome="started")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One phase of a test, or one of its sub-tests."""
    if report.failed:
        _failures.setdefault(report.nodeid, _reason(report.longrepr))
    elif report.skipped:
        _seen[report.nodeid] = "skipped"
    elif report.when == "call":
        _seen.setdefault(report.nodeid, "passed")


def pytest_runtest_logfinish(nodeid: str) -> None:
    """All phases and sub-tests together: one that failed fails the test."""
    failure = _failures.pop(nodeid, None)
    _write(name=nodeid, outcome="failed" if failure is not None else _seen.pop(nodeid, "skipped"), reason=failure or "")


def _reason(longrepr: Any) -> str:
    crash = getattr(longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(longrepr)
    where = f" [{os.path.basename(crash.path)}:{crash.lineno}]" if crash is not None else ""
    return " ".join(text.split())[:400] + where


def _write(**line: str) -> None:
    with open(os.environ["UPSTREAM_RESULTS"], "a") as file:
        print(json.dumps(line), file=file)
