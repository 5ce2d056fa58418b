"""The compatibility table is complete and true: it agrees with the modules of torch_xla's names, and docs/compat.md with it."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tools import compat_table
from torch import nn

from markstep.compat import names_folder
from markstep.compat.exposing import expose_torch_xla
from markstep.compat.table import ENTRIES, ENVIRONMENT, SAGEMAKER, Entry
from markstep.xla import training_compiler

os.environ.setdefault("USE_TORCH_XLA", "0")  # Transformers and Accelerate in the other tests of this process stay on the CPU
expose_torch_xla()

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "src" / "markstep" / "compat" / "table.py"
# Arguments for functions that need some; "raises" needs none.
ARGUMENTS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "torch_xla.core.xla_model.parse_xla_device": lambda: ("xla:0",),
    "torch_xla.experimental.pjrt.broadcast_master_param": lambda: (nn.Linear(2, 2),),
    "torch_xla.experimental.pjrt.device_attributes": lambda: ("xla:0",),
    "torch_xla.experimental.pjrt.rendezvous": lambda: ("here",),
    "torch_xla.experimental.pjrt.requires_pjrt": lambda: (len,),
    "torch_xla.experimental.pjrt.set_device_type": lambda: ("CPU",),
    "torch_xla.experimental.pjrt.spawn": lambda: (abs,),
    "torch_xla.experimental.pjrt.spawn_threads": lambda: (abs,),
    "torch_xla.runtime.requires_pjrt": lambda: (len,),
}


def modules() -> list[str]:
    root = names_folder()
    paths = sorted((root / "torch_xla").rglob("*.py"))
    return [".".join(p.relative_to(root).with_suffix("").parts).removesuffix(".__init__") for p in paths]


def resolve(entry: Entry) -> Any:
    module, _, name = entry.name.rpartition(".")
    return getattr(importlib.import_module(module), name)


def in_state(state: str) -> Any:
    return pytest.mark.parametrize("entry", [e for e in ENTRIES if e.state == state], ids=lambda e: e.name)


def test_names_are_unique_and_have_a_release() -> None:
    assert len({e.name for e in ENTRIES}) == len(ENTRIES)
    assert [e.name for e in ENTRIES if not re.fullmatch(r"1\.(9|1\d)|2\.\d|-", e.since)] == []


@pytest.mark.parametrize("module", modules())
def test_table_has_the_names_of_the_module(module: str) -> None:
    exported = getattr(importlib.import_module(module), "__all__", [])
    listed = [e.name.rpartition(".")[2] for e in ENTRIES if e.name.rpartition(".")[0] == module]
    assert sorted(listed) == sorted(exported)
    assert len(set(exported)) == len(exported)


def test_every_name_resolves() -> None:
    assert {e.name.rpartition(".")[0] for e in ENTRIES} <= set(modules())
    for entry in ENTRIES:
        resolve(entry)


@in_state("raises")
def test_raises(entry: Entry) -> None:
    with pytest.raises(NotImplementedError) as caught:
        resolve(entry)()
    assert entry.notes
    assert str(caught.value).endswith(entry.notes)


@in_state("deprecated")
def test_deprecated(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PJRT_DEVICE", os.environ.get("PJRT_DEVICE", ""))  # set_device_type changes it
    function = resolve(entry)
    with pytest.warns(DeprecationWarning) as caught:
        function(*ARGUMENTS.get(entry.name, tuple)())
    assert [w.filename for w in caught] == [__file__]
    release = re.search(r"since torch_xla (\d\.\d+)", str(caught[0].message))
    assert release is not None
    assert entry.notes.startswith(f"since {release[1]}")


@in_state("no effect")
def test_no_effect_says_why(entry: Entry) -> None:
    assert entry.notes


def test_page_is_written_by_the_tool() -> None:
    assert (ROOT / "docs" / "compat.md").read_text() == compat_table.text(), "run tools/compat_table.py"


def test_environment_variables_occur_in_the_source() -> None:
    source = "\n".join(p.read_text() for p in sorted((ROOT / "src").rglob("*.py")) if p != TABLE)
    rows = [s for s in (*ENVIRONMENT, *SAGEMAKER) if s.state == "works"]
    words = {s.name.removeprefix("python -m torch_xla.distributed.") for s in rows}
    assert [w for w in sorted(words) if w not in source] == []
    read = re.findall(r'(?:environ(?:\.get|\.setdefault)?[\[(]|flag\()"([A-Z_0-9]+)"', source)
    of_torch_xla = {name for name in read if re.match("PJRT|XLA|PT_XLA|XRT|ALLREDUCE|CPU_NUM|GPU_NUM|SM_", name)}
    assert of_torch_xla <= {s.name for s in rows}


def test_variables_without_effect_are_not_read() -> None:
    source = "\n".join(p.read_text() for p in sorted((ROOT / "src" / "markstep" / "xla").glob("*.py")))
    without = [s.name for s in ENVIRONMENT if s.state == "no effect"]
    assert [n for n in without if re.search(rf'(environ(\.get)?[\[(]|flag\()"{n}"', source)] == []


def test_log_lines_of_the_training_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {s.name: "true" for s in SAGEMAKER if s.name.startswith("sagemaker_training_compiler_")}
    assert len(keys) == 2
    monkeypatch.setattr(os, "environ", {"SM_FRAMEWORK_PARAMS": str(keys).replace("'", '"'), "SM_OUTPUT_DATA_DIR": str(tmp_path)})
    with caplog.at_level("INFO", training_compiler.log.name):
        training_compiler.configure()
    lines = [s.name for s in SAGEMAKER if s.effect.startswith("Log line")]
    assert [r.getMessage() for r in caplog.records] == lines
    assert {"GPU_NUM_DEVICES", "SM_TRAINING_COMPILER_CONFIGURED"} <= set(os.environ)


def test_metadata_in_a_new_interpreter() -> None:
    program = (
        "import importlib.metadata, markstep.compat.exposing as e\n"
        "assert e.expose_torch_xla()\n"
        "print(importlib.metadata.version('torch_xla'))\n"
        "print(__import__('torch_xla.version').version.__version__)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["2.9.0", "2.9.0"]
