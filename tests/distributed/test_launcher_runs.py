"""`markstep run --nproc N` with real processes on this machine."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

COMMAND = [sys.executable, "-m", "markstep", "run"]
LIMIT = 100  # seconds, for one command

INITIALISES = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.ones(1)
dist.all_reduce(t)
print("result", dist.get_rank(), int(t), torch.get_num_threads(), sys.argv[1:], torch.initial_seed())
print("variable", os.environ["SMDATAPARALLEL_LOCAL_RANK"], __name__)
sys.stderr.write("the tail")
dist.destroy_process_group()
"""
MP_FN = """
import torch
import torch_xla.core.xla_model as xm
def main():
    print("result", xm.get_ordinal(), float(xm.all_reduce("sum", torch.ones(1))))
def _mp_fn(index):
    print("index", index)
    main()
if __name__ == "__main__":
    main()
"""
SPAWNS = """
import torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
def _mp_fn(index, word):
    print("result", word, index, float(xm.all_reduce("sum", torch.ones(1))))
if __name__ == "__main__":
    xmp.spawn(_mp_fn, args=("spawn",))
    torch_xla.launch(_mp_fn, args=("launch",))
"""
FAILS = """
import os, sys, time, torch, torch.distributed as dist, signal
dist.init_process_group("gloo")
how, rank = sys.argv[1], dist.get_rank()
dist.all_reduce(torch.ones(1))
if how == "ignore":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if rank == 1:
    print("failing at", time.time(), flush=True)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(9)
    if how == "hang":
        import threading
        threading.Thread(target=time.sleep, args=(60,)).start()
    raise ValueError("the batch is wrong")
if how in ("ignore", "hang"):
    time.sleep(60)
try:
    dist.all_reduce(torch.ones(1))
finally:
    if how == "finally":
        time.sleep(60)
"""
ENDLESS = """
import os, subprocess, sys, time
rank = os.environ["RANK"]
child = subprocess.Popen(["sleep", "300"])
open(sys.argv[1] + "/" + rank, "w").write(f"{os.getpid()} {child.pid}")
print("going", flush=True)
time.sleep(300)
"""
RESTARTS = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("attempt", attempt)
if attempt < 1 and dist.get_rank() == 0:
    raise SystemExit(4)
dist.all_reduce(torch.ones(1))
"""


class Run(NamedTuple):
    status: int
    out: str
    err: str
    ended: float


@contextmanager
def started(arguments: list[str], folder: Path, **variables: str) -> Iterator["subprocess.Popen[str]"]:
    """A launcher in a folder; ended with its workers after the block, whatever happens."""
    environment = {k: v for k, v in os.environ.items() if k != "USE_TORCH_XLA"}
    environment |= {"OMP_NUM_THREADS": "1", "MARKSTEP": "0", "PYTHONUNBUFFERED": "", **variables}
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        arguments, cwd=folder, env={k: v for k, v in environment.items() if v}, text=True, stdout=pipe, stderr=pipe,
        stdin=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def run(
    folder: Path, text: str, *arguments: str, options: str = "--nproc 2", command: list[str] = COMMAND, **variables: str
) -> Run:
    (folder / "train.py").write_text(text)
    with started([*command, *options.split(), "train.py", *arguments], folder, **variables) as process:
        out, err = process.communicate(timeout=LIMIT)
        return Run(process.returncode, out, err, time.time())


def results(run: Run) -> list[str]:
    assert run.status == 0, run.err
    return sorted(line for line in run.out.splitlines() if "result" in line)


pytestmark = pytest.mark.slow


def test_script_that_initialises_the_group(tmp_path: Path) -> None:
    ran = run(tmp_path, INITIALISES, "pa$$word ${local_rank}", "--lr", options="--nproc 2 --seed 11")
    arguments = "['pa$$word ${local_rank}', '--lr']"
    assert results(ran) == [f"[{r}] result {r} 2 1 {arguments} 11" for r in (0, 1)]
    assert {"[0] variable 0 __main__", "[1] variable 1 __main__"} <= set(ran.out.splitlines())
    assert sorted(ran.err.splitlines()) == ["[0] the tail", "[1] the tail"]


def test_threads_are_divided_and_the_prefix_can_be_left_out(tmp_path: Path) -> None:
    ran = run(tmp_path, INITIALISES, options="--nproc 2 --no-prefix", OMP_NUM_THREADS="")
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert [line.split()[:4] for line in results(ran)] == [["result", str(r), "2", str(threads)] for r in (0, 1)]
    seeds = {line.split()[-1] for line in results(ran)}
    assert len(seeds) == 2  # without --seed nothing is seeded


def test_mp_fn_is_called_once_in_each_worker(tmp_path: Path) -> None:
    ran = run(tmp_path, MP_FN)
    assert results(ran) == ["[0] result 0 2.0", "[1] result 1 2.0"]
    assert sorted(line for line in ran.out.splitlines() if "index" in line) == ["[0] index 0", "[1] index 1"]


def test_spawn_and_launch_run_in_the_workers(tmp_path: Path) -> None:
    ran = run(tmp_path, SPAWNS)
    assert results(ran) == [f"[{r}] result {word} {r} 2.0" for r in (0, 1) for word in ("launch", "spawn")]


def test_module(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "work.py").write_text(INITIALISES)
    with started([*COMMAND, "--nproc", "2", "-m", "pack.work", "--lr"], tmp_path) as process:
        out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert "[1] result 1 2 1 ['--lr']" in out


def test_under_torchrun(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "markstep", "run"]
    assert results(run(tmp_path, MP_FN, options="", command=torchrun)) == ["result 0 2.0", "result 1 2.0"]
    failed = run(tmp_path, FAILS, "raise", options="", command=torchrun)
    assert failed.status == 1
    root = failed.err.partition("Root Cause")[2]
    assert "ValueError: the batch is wrong" in root and "launch.py" not in root


@pytest.mark.parametrize(
    ("how", "status", "what"),
    [
        ("raise", 1, "exit status 1"),
        ("kill", 137, "ended by SIGKILL"),
        ("finally", 1, "exit status 1"),  # the other one fails because of it, and takes long to end
        ("hang", 1, "an exception"),  # a thread keeps the worker alive after its exception
    ],
)
def test_failure(how: str, status: int, what: str, tmp_path: Path) -> None:
    """The rank that failed first is named, not the one that lost the connection to it, and all end at once."""
    ran = run(tmp_path, FAILS, how)
    assert ran.status == status, ran.err
    block = ran.err[ran.err.index("markstep: rank") :].splitlines()
    assert re.fullmatch(rf"markstep: rank 1 failed first \(host \S+, pid \d+\): {what}", block[0])
    raised = how in ("raise", "finally", "hang")
    assert (block[1] == "    Traceback (most recent call last):") == raised
    assert ("    ValueError: the batch is wrong" in block) == raised
    assert ("memory ran out" in ran.err) == (how == "kill")
    assert any(line.startswith("markstep: rank 0: ") for line in block)
    assert "launch.py" not in "\n".join(block)
    began = float(re.findall(r"failing at ([\d.]+)", ran.out)[0])
    assert ran.ended - began < (12 if how == "hang" else 8)


def test_who_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    ran = run(tmp_path, FAILS, "ignore", options="--nproc 2 --grace 1")
    assert "rank 0: ended because of it; did not end by itself within 1 s, so was killed" in ran.err
    assert ran.ended - float(re.findall(r"failing at ([\d.]+)", ran.out)[0]) < 8


def test_restart(tmp_path: Path) -> None:
    ran = run(tmp_path, RESTARTS, options="--nproc 2 --max-restarts 1")
    assert ran.status == 0, ran.err
    assert ran.out.count("attempt 0") == ran.out.count("attempt 1") == 2
    assert re.findall(r"restart (\d) of 1: rank 0 .* failed first: SystemExit: 4", ran.err) == ["1"]
    assert "failed to connect" not in ran.err  # with addresses of the first start


def wait_for_pids(folder: Path, count: int) -> list[int]:
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        texts = [p.read_text() for p in folder.iterdir()]
        if len(texts) == count and all(texts):
            return [int(pid) for text in texts for pid in text.split()]
        time.sleep(0.05)
    raise TimeoutError


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ending_the_launcher_ends_the_workers(by: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    (tmp_path / "train.py").write_text(ENDLESS)
    with started([*COMMAND, "--nproc", "2", "train.py", str(tmp_path / "pids")], tmp_path) as process:
        pids = wait_for_pids(tmp_path / "pids", 2)
        began = time.monotonic()
        process.send_signal(by)
        process.wait(20)
        workers = pids[::2] if by == signal.SIGKILL else pids
        try:
            while any(map(alive, workers)) and time.monotonic() - began < 10:
                time.sleep(0.05)
            assert not any(map(alive, workers))
        finally:
            for pid in filter(alive, pids[1::2]):
                os.kill(pid, signal.SIGKILL)
        assert process.returncode == (-by if by == signal.SIGKILL else 128 + by)
        assert time.monotonic() - began < 6


def test_two_jobs_at_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(INITIALISES)
    command = [*COMMAND, "--nproc", "2", "train.py"]
    with started(command, tmp_path) as one, started(command, tmp_path) as two:
        for process in (one, two):
            out, err = process.communicate(timeout=LIMIT)
            assert process.returncode == 0, err
            assert out.count("result") == 2


@pytest.fixture
def ssh(tmp_path: Path) -> str:
    """A program that does what ssh does, on this machine."""
    path = tmp_path / "ssh.sh"
    path.write_text('#!/bin/sh\nhost=$1\nshift\n[ "$host" = nowhere ] && exit 255\nunset MARKSTEP_TOLD\ncd /\nexec sh -c "$*"\n')
    path.chmod(0o755)
    return str(path)


def test_hosts_over_ssh(ssh: str, tmp_path: Path) -> None:
    text = INITIALISES + "\nprint('told', os.environ['MARKSTEP_TOLD'], os.getcwd())"
    ran = run(
        tmp_path, text, "a b", options="--hosts localhost,127.0.0.1:2 --nproc 1 --seed 4", MARKSTEP_SSH=ssh, MARKSTEP_TOLD="x y"
    )
    assert results(ran) == [f"[{r}] result {r} 3 1 ['a b'] 4" for r in (0, 1, 2)]
    assert ran.out.count(f"told x y {tmp_path}") == 3


def test_failure_on_one_of_several_hosts(ssh: str, tmp_path: Path) -> None:
    ran = run(tmp_path, FAILS, "raise", options=f"--hosts localhost,127.0.0.1 --nproc 1 --ssh {ssh}")
    assert ran.status == 1, ran.err
    assert ran.err.count("markstep: rank 1 failed first") == 2  # each host says it
    assert "rank 0 failed first" not in ran.err
    assert ran.err.count("    Traceback") == 1  # the host of rank 1 shows the whole traceback
    assert ran.ended - float(re.findall(r"failing at ([\d.]+)", ran.out)[0]) < 15


def test_host_that_cannot_be_reached(ssh: str, tmp_path: Path) -> None:
    ran = run(tmp_path, INITIALISES, options=f"--hosts localhost,nowhere --nproc 1 --grace 1 --ssh {ssh}")
    assert ran.status == 255, ran.err
    assert "host nowhere: its launcher ended with status 255" in ran.err and "could not reach it" in ran.err


def test_interrupt_ends_all_hosts(ssh: str, tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    (tmp_path / "train.py").write_text(ENDLESS)
    options = ["--hosts", "localhost,127.0.0.1", "--nproc", "1", "--ssh", ssh]
    with started([*COMMAND, *options, "train.py", str(tmp_path / "pids")], tmp_path) as process:
        pids = wait_for_pids(tmp_path / "pids", 2)
        process.send_signal(signal.SIGINT)
        process.wait(20)
        assert process.returncode == 128 + signal.SIGINT
        until = time.monotonic() + 5
        while any(map(alive, pids)) and time.monotonic() < until:
            time.sleep(0.05)
        assert not any(map(alive, pids))


def test_the_same_command_on_two_hosts(tmp_path: Path) -> None:
    """With a restart, which both hosts count, and then the end on both."""
    (tmp_path / "train.py").write_text(FAILS)
    options = ["--nnodes", "2", "--rdzv", f"127.0.0.1:{free_port()}", "--local-addr", "127.0.0.1", "--max-restarts", "1"]
    command = [*COMMAND, *options, "--nproc", "1", "train.py", "exit"]
    with started(command, tmp_path) as one, started(command, tmp_path) as two:
        said = [process.communicate(timeout=LIMIT)[1] for process in (one, two)]
    assert one.returncode == two.returncode == 9
    for err in said:
        assert len(re.findall(r"restart 1 of 1: rank 1 .* failed first: exit status 9", err)) == 1
        assert "markstep: rank 1 failed first" in err


def test_a_host_that_goes_away(tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    text = ENDLESS.replace("time.sleep(300)", "d.barrier() if rank == '0' else time.sleep(300)")
    (tmp_path / "train.py").write_text("import torch.distributed as d\nd.init_process_group('gloo')\n" + text)
    options = ["--nnodes", "2", "--rdzv", f"127.0.0.1:{free_port()}", "--local-addr", "127.0.0.1"]
    command = [*COMMAND, *options, "--nproc", "1", "train.py", str(tmp_path / "pids")]
    with started(command, tmp_path) as one, started(command, tmp_path) as two:
        pids = wait_for_pids(tmp_path / "pids", 2)
        ranks = {int(p.read_text().split()[0]): p.name for p in (tmp_path / "pids").iterdir()}
        parents = {parent_of(pid): rank for pid, rank in ranks.items()}
        lost = next(p for p in (one, two) if parents[p.pid] == "1")
        left = two if lost is one else one
        lost.kill()
        err = left.communicate(timeout=60)[1]
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)
    assert left.returncode != 0
    assert "a lost connection" in err or "no contact with the other launchers" in err


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


TRAINER = """
import sys, torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
def main():
    torch.manual_seed(0)
    sizes = dict(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    data = [{"input_ids": torch.randint(0, 50, (8,)), "labels": i % 2} for i in range(32)]
    chosen = TrainingArguments("out", max_steps=3, report_to=[], save_strategy="no", disable_tqdm=True, optim="adamw_torch")
    trainer = Trainer(BertForSequenceClassification(BertConfig(**sizes)), chosen, train_dataset=data)
    trainer.train()
    weights = sum(p.double().sum().item() for p in trainer.model.parameters())
    print("result", trainer.args.world_size, trainer.args.device.type, weights)
"""
ACCELERATED = """
import torch
from accelerate import Accelerator
accelerator = Accelerator()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model, optimizer, data = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(torch.rand(8, 4), batch_size=2))
for batch in data:
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
print("result", accelerator.num_processes, accelerator.device.type, [p.tolist() for p in model.parameters()])
"""
LIGHTNING = """
import lightning, torch
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = lightning.Trainer(accelerator="cpu", devices=2, max_epochs=1, **quiet)
module = Module()
trainer.fit(module, torch.utils.data.DataLoader(torch.rand(8, 4), batch_size=2))
print("result", trainer.world_size, "cpu", [p.tolist() for p in module.parameters()])
"""


@pytest.mark.parametrize(
    ("text", "device"),
    [
        (TRAINER + "main()", "cpu"),
        (TRAINER + "def _mp_fn(index):\n    main()\nif __name__ == '__main__':\n    main()", "xla"),
        (ACCELERATED, "cpu"),
        (LIGHTNING, "cpu"),
    ],
    ids=["trainer", "trainer on xla", "accelerate", "lightning"],
)
def test_libraries_that_start_by_themselves(text: str, device: str, tmp_path: Path) -> None:
    """They train together, and not each worker alone, and end with the same weights."""
    ran = run(tmp_path, text, MARKSTEP="1" if device == "xla" else "0", MARKSTEP_BACKEND="interpreter")
    found = [line.partition("result ")[2] for line in results(ran)]
    assert len(found) == 2
    assert found[0] == found[1]
    assert found[0].startswith(f"2 {device} ")
