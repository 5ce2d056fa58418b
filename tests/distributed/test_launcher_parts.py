"""The parts of `markstep run --nproc`, in this process."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from markstep import cli
from markstep.distributed import launch_worker, launcher
from markstep.distributed.launch_failure import Failure, read, record, report
from markstep.distributed.launch_hosts import Host, parse_hosts
from markstep.distributed.launch_output import Relay
from markstep.distributed.launch_scan import scan


def script(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("def _mp_fn(index):\n    pass\n", "train.py:1 has _mp_fn"),
        ("from other import _mp_fn", "train.py:1 has _mp_fn"),
        ("\nimport torch.distributed as dist\ndist.init_process_group('gloo')", "train.py:3 uses init_process_group"),
        ("from torch.nn.parallel import DistributedDataParallel as D", "train.py:1 uses DistributedDataParallel"),
        ("from torch.distributed.fsdp import fully_shard", "train.py:1 imports torch.distributed.fsdp"),
        ("def main():\n    from accelerate import Accelerator", "train.py:2 imports accelerate"),
        ("import lightning as L", "train.py:1 imports lightning"),
        ("import deepspeed", "train.py:1 imports deepspeed"),
        ("from transformers import Seq2SeqTrainer", "train.py:1 uses Seq2SeqTrainer"),
        ("import transformers\ntransformers.Trainer", "train.py:2 uses Trainer"),
        ("import torch_xla.core.xla_model as xm", "train.py:1 imports torch_xla"),
        ("import smdistributed.dataparallel.torch.torch_smddp", "train.py:1 imports smdistributed"),
        ("from markstep.distributed import DataParallel", "train.py:1 imports markstep.distributed"),
        ("import os\nrank = os.environ['RANK']", "train.py:2 reads RANK"),
    ],
)
def test_signs_of_training_together(text: str, sign: str, tmp_path: Path) -> None:
    assert sign in scan(script(tmp_path, text)).signs


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nloss = torch.ones(1)",
        "import torch.distributed",
        "from transformers import AutoModel",
        "# init_process_group",
        "class Trainer: pass",
        "import train",  # itself
        "def (",  # Python says what is wrong
    ],
)
def test_no_signs(text: str, tmp_path: Path) -> None:
    assert scan(script(tmp_path, text)).signs == []


def test_modules_beside_the_script_are_read(tmp_path: Path) -> None:
    script(tmp_path, "import torch.distributed as d\ndef f(): d.init_process_group()", "lib/deep/setup.py")
    script(tmp_path, "from .deep import setup", "lib/__init__.py")
    script(tmp_path, "", "lib/deep/__init__.py")
    assert scan(script(tmp_path, "import lib")).signs == ["setup.py:2 uses init_process_group"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("def _mp_fn(index): pass\nif __name__ == '__main__': main()", True),
        ("def _mp_fn(index): pass\nxmp.spawn(_mp_fn)", False),
        ("def _mp_fn(index): pass\ndef main():\n    torch_xla.launch(_mp_fn)", False),
        ("class A:\n    def _mp_fn(self): pass", False),
    ],
)
def test_who_calls_mp_fn(text: str, wanted: bool, tmp_path: Path) -> None:
    assert scan(script(tmp_path, text)).wants_mp_fn == wanted


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", *arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_a_script_that_trains_alone_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(script(tmp_path, "import torch"))
    for options in (["--nproc", "2"], ["--nnodes", "2", "--rdzv", "a:1"], ["--hosts", "a,b"]):
        said = refused([*options, path], capsys)
        assert "each of them would train alone" in said and "--force" in said and "init_process_group" in said


def test_a_script_that_starts_processes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "import torch.multiprocessing as mp\nimport torch.distributed as d\nd.init_process_group()\nmp.spawn(print, nprocs=2)"
    assert "train.py:4: torch.multiprocessing.spawn" in refused(["--nproc", "2", str(script(tmp_path, text))], capsys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nproc", "0"], "--nproc 0: give a number"),
        (["--nproc", "many"], "--nproc many: give a number of processes, or auto"),
        (["--nnodes", "2"], "needs --rdzv HOST:PORT"),
        (["--nnodes", "3:2", "--rdzv", "a:1"], "--nnodes 3:2"),
        (["--hosts", "a,a"], "give different names"),
        (["--hosts", "a,b:x"], "'x' is no number"),
        (["--hosts", "a,b", "--nnodes", "2", "--rdzv", "a:1"], "leave --nnodes out"),
        (["--nproc", "2", "--rdzv-conf", "timeout"], "give NAME=VALUE"),
    ],
)
def test_options_that_do_not_fit(options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused([*options, "--force", str(script(tmp_path, ""))], capsys)


def test_inside_of_a_worker_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert "is a worker already" in refused(["--nproc", "2", str(script(tmp_path, ""))], capsys)


def test_number_of_processes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert launcher._count("auto") == 1
    assert "1 process, as there is no GPU" in capsys.readouterr().err
    assert launcher._count("3") == 3
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert launcher._count(None) == 2
    assert "2 processes, one for each GPU" in capsys.readouterr().err
    with pytest.raises(ValueError, match="there are 2 GPUs"):
        launcher._count("3")
    monkeypatch.setenv("MARKSTEP_DEVICE", "cpu")
    assert launcher._count("3") == 3
    monkeypatch.delenv("MARKSTEP_DEVICE")
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    assert launcher._count("auto") == 1


def test_variables_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert launcher._variables(3, None)["OMP_NUM_THREADS"] == "2"
    assert launcher._variables(16, None)["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in launcher._variables(1, None)
    assert launcher._variables(2, 7)[launch_worker.SEED] == "7"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert "OMP_NUM_THREADS" not in launcher._variables(3, None)


def test_hosts() -> None:
    assert parse_hosts("a, me@b:4") == [Host("a"), Host("me@b", "4")]
    assert Host("me@b").address == "b"


def relayed(chunks: list[bytes], capfd: pytest.CaptureFixture[str], prefix: str = "[3] ") -> str:
    relay = Relay()
    reading, writing = os.pipe()
    relay.add(reading, 1, prefix)
    for chunk in chunks:
        os.write(writing, chunk)
        time.sleep(0.1)
    relay.finish()  # the writing end is still open, as after a worker was killed
    os.close(writing)
    return capfd.readouterr().out


def test_relay_keeps_lines_and_the_tail(capfd: pytest.CaptureFixture[str]) -> None:
    out = relayed([b"one\ntw", b"o\n\nno end"], capfd)
    assert out == "[3] one\n[3] two\n[3] \n[3] no end\n"


def test_relay_shows_what_carriage_returns_leave(capfd: pytest.CaptureFixture[str]) -> None:
    assert relayed([b"\r10%\r20%", b"\r30%\nwindows\r\n"], capfd) == "[3] 30%\n[3] windows\n"


def test_relay_of_much_output(capfd: pytest.CaptureFixture[str]) -> None:
    lines = b"".join(b"%05d " % i + b"x" * 50 + b"\n" for i in range(1000))
    out = relayed([lines], capfd, "")
    assert out.encode() == lines


def test_failure_is_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    assert read(str(path)) is None
    try:
        raise KeyError("gone")
    except KeyError as error:
        record(error, error.__traceback__)
    found = read(str(path))
    assert found is not None
    assert abs(found[0] - time.time()) < 10
    assert found[1].startswith("Traceback") and found[1].rstrip().endswith("KeyError: 'gone'")


def failure(**changes: Any) -> Failure:
    values = {"rank": 1, "host": "h", "pid": 5, "status": 1, "time": 1.0, "trace": "Traceback:\n  x\nValueError: bad\n"}
    return Failure(**{**values, **changes})


def test_exit_statuses() -> None:
    assert [failure(status=s).exit_status for s in (7, -9, None)] == [7, 137, 1]
    assert [failure(status=s).how() for s in (7, -11, None)] == ["exit status 7", "ended by SIGSEGV", "an exception"]
    assert Failure.from_json(failure().to_json()) == failure()


def test_lost_connections_are_no_causes() -> None:
    assert failure(trace="RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:3").lost_peer
    assert not failure().lost_peer


def test_report() -> None:
    text = report(
        failure(), {0: "ended because of it", 2: "ended because of it", 3: "had finished"}, here=True, several_hosts=False
    )
    assert text.splitlines()[1:] == [
        "markstep: rank 1 failed first (host h, pid 5): exit status 1",
        "    Traceback:",
        "      x",
        "    ValueError: bad",
        "markstep: ranks 0, 2: ended because of it",
        "markstep: rank 3: had finished",
    ]
    killed = report(failure(status=-signal.SIGKILL, trace=""), {}, here=True, several_hosts=False)
    assert "ended by SIGKILL" in killed and "memory ran out" in killed
    elsewhere = report(failure(), {}, here=False, several_hosts=True)
    assert "Traceback" not in elsewhere and "ValueError: bad" in elsewhere and "output of host h" in elsewhere


def test_seed() -> None:
    import random

    import numpy as np

    drawn = []
    for value in (3, 3, 4):
        launch_worker.seed(value)
        drawn.append((random.random(), float(np.random.rand()), float(torch.rand(()))))
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(a != b for a, b in zip(drawn[0], drawn[2], strict=True))
