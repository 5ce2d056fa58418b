"""The backend smddp. One job of two processes makes all checks of `CHECKS`; each is a test."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import markstep

CHECKS = Path(__file__).with_name("smddp_job.py")
LIMIT = 150


def job(folder: Path, text: str, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Runs a script in two workers and returns status, output and errors; ends them if they take too long."""
    script = folder / "job.py"
    script.write_text(text)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MARKSTEP": "0", **variables}
    command = [sys.executable, "-m", "markstep", "run", "--nproc", "2", str(script), *arguments]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=LIMIT)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


def names() -> list[str]:
    return re.findall(r"^def check_(\w+)", CHECKS.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """What each check said in each process; empty if it passed."""
    folder = tmp_path_factory.mktemp("smddp")
    status, _, err = job(folder, CHECKS.read_text(), str(folder))
    assert status == 0, err
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_check(name: str, results: list[dict[str, str]]) -> None:
    for rank in (0, 1):
        assert name in results[rank], f"rank {rank} did not come to it"
        assert not results[rank][name], f"rank {rank}:\n{results[rank][name]}"


LEGACY = """
import sys, torch
import smdistributed.dataparallel.torch.distributed as dist
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP
from smdistributed.dataparallel.torch.parallel import DistributedDataParallel
assert DDP is DistributedDataParallel and dist.is_available() and not dist.is_initialized()
try:
    dist.get_rank()
except RuntimeError as error:
    assert "call smdistributed" in str(error)
else:
    raise AssertionError("no group, no error")
dist.init_process_group()
dist.init_process_group()
rank = dist.get_rank()
assert dist.is_initialized() and dist.get_world_size() == 2 and dist.get_local_rank() == rank
assert torch.distributed.get_backend() == "smddp"

def made(value): return torch.full((3,), float(value))
for op, want in ((dist.ReduceOp.SUM, 3), (dist.ReduceOp.AVERAGE, 1.5), (dist.ReduceOp.MIN, 1), (dist.ReduceOp.MAX, 2)):
    t = made(rank + 1); dist.all_reduce(t, op=op); assert t.tolist() == [want] * 3, (op, t)
    t = made(rank + 1); work = dist.all_reduce(t, op=op, async_op=True); work.wait(); work.wait(); assert t.tolist() == [want] * 3
t = made(rank); dist.broadcast(t, 1); assert t.tolist() == [1] * 3
t = made(rank + 1); dist.reduce(t, 0); assert rank or t.tolist() == [3] * 3
t = made(rank + 1); dist.reduce(t, 0, op=dist.ReduceOp.AVERAGE); assert rank or t.tolist() == [1.5] * 3
parts = [made(9), made(9)]; dist.all_gather(parts, made(rank)); assert [p[0].item() for p in parts] == [0, 1]
out = torch.zeros(2); dist.all_to_all_single(out, torch.tensor([10.0, 20.0]) + rank)
assert out.tolist() == [10 * rank + 10, 10 * rank + 11]
t = made(1); dist.all_reduce(t, group=dist.new_group([0, 1])); assert t.tolist() == [2] * 3
dist.barrier()

torch.manual_seed(0)
plain = torch.nn.Linear(3, 2)
model = DDP(plain, broadcast_buffers=False, bucket_cap_mb=25)
assert all(k.startswith("module.") for k in model.state_dict())
model(made(rank + 1)).sum().backward()
assert torch.equal(plain.weight.grad, torch.full((2, 3), 1.5)), plain.weight.grad  # once, and not twice
with model.no_sync():
    model(made(rank + 1)).sum().backward()
assert torch.equal(plain.weight.grad, torch.full((2, 3), 2.5 + rank))
print("passed")
"""


@pytest.mark.slow
def test_api_before_1_4(tmp_path: Path) -> None:
    status, out, err = job(tmp_path, LEGACY)
    assert status == 0, err
    assert sorted(out.splitlines()) == ["[0] passed", "[1] passed"]
    assert err.count("smdistributed.dataparallel.torch.dist is deprecated in the SageMaker distributed data parallel") == 1
    assert "[0] smdistributed" in err and "init_process_group(backend='smddp')" in err


def alone(code: str, folder: Path, *paths: Path) -> str:
    """What a program prints that nothing launched, and that finds this Markstep and packages in `paths`."""
    source = Path(markstep.__file__).parents[1]
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (*paths, source)))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_process_that_nothing_launched(tmp_path: Path) -> None:
    """Without mpirun the old API did not start; here it is a group of one."""
    code = (
        "from markstep.compat.exposing import expose_smdistributed\nassert expose_smdistributed()\nimport torch\n"
        "import smdistributed.dataparallel\nimport smdistributed.dataparallel.torch.distributed as d\nd.init_process_group()\n"
        "t = torch.ones(2)\nd.all_reduce(t)\nprint(d.get_world_size(), d.get_local_rank(), t.tolist())"
    )
    assert alone(code, tmp_path) == "1 0 [1.0, 1.0]\n"


def test_importing_the_module_registers_the_backend(tmp_path: Path) -> None:
    code = (
        "import torch.distributed as d\nassert not hasattr(d.Backend, 'SMDDP')\n"
        "import markstep.distributed.smddp as s\ns.register()\n"
        "d.init_process_group('smddp', store=d.HashStore(), rank=0, world_size=1)\nprint(d.get_backend())"
    )
    assert alone(code, tmp_path) == "smddp\n"


@pytest.mark.parametrize("namespace", [True, False])
def test_a_real_package_is_left_alone(namespace: bool, tmp_path: Path) -> None:
    package = tmp_path / "smdistributed" / "dataparallel"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("whose = 'theirs'")
    if not namespace:
        (tmp_path / "smdistributed" / "__init__.py").write_text("")
    code = (
        "from markstep.compat.exposing import expose_smdistributed as e\nprint(e())\nimport smdistributed.dataparallel as s\n"
        "print(s.whose, e())"
    )
    assert alone(code, tmp_path / "..", tmp_path) == "False\ntheirs False\n"


WITHOUT_IMPORT = """
import torch, torch.distributed as dist
dist.init_process_group(backend="smddp")  # the import of torch_smddp is forgotten
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
print(dist.get_backend(), dist.get_debug_level())
"""


@pytest.mark.slow
def test_forgotten_import_and_the_debug_level_detail(tmp_path: Path) -> None:
    """SMDDP says "Invalid backend: 'smddp'"; and with gloo, DDP crashes when TORCH_DISTRIBUTED_DEBUG is DETAIL."""
    status, out, err = job(tmp_path, WITHOUT_IMPORT, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert status == 0, err
    assert out.count("smddp DebugLevel.DETAIL") == 2


UNEVEN = """
import sys, time, torch, torch.distributed as dist
from torch.distributed.algorithms.join import Join
import smdistributed.dataparallel.torch.torch_smddp
from datetime import timedelta
dist.init_process_group("smddp", timeout=timedelta(seconds=5))
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
def train(batches):
    for _ in range(batches):
        model(torch.ones(1, 2)).sum().backward()
if sys.argv[1] == "join":
    with Join([model]):
        train(3 + 2 * rank)
    print("joined")
else:
    began = time.time()
    train(3 + 2 * rank)
    time.sleep(40)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["join", "stall"])
def test_unequal_numbers_of_batches(how: str, tmp_path: Path) -> None:
    """With Join they finish; without, the rank that waits fails after the timeout of the group and is named."""
    began = time.monotonic()
    status, out, err = job(tmp_path, UNEVEN, how)
    if how == "join":
        assert status == 0, err
        assert out.count("joined") == 2
    else:
        assert status == 1
        assert "markstep: rank 1 failed first" in err and "imed out" in err
        assert time.monotonic() - began < 35


def test_names_of_checks_are_found() -> None:
    assert len(names()) > 20
