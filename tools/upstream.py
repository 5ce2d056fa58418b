#!/usr/bin/env python3
"""Runs torch_xla's own tests and example scripts against Markstep and says how many of those that pass there pass here.

Usage: tools/upstream.py CHECKOUT [--only NAME ...] [--json FILE]

CHECKOUT is a clone of https://github.com/pytorch/xla at v2.9.0; nothing of it is copied. What torch_xla 2.9.0 passes itself
is listed in upstream_passes/, what is not asked of Markstep in upstream_scope.py. Programs are replayed call by call unless
MARKSTEP_BACKEND says otherwise: with "inductor" nearly every test would wait for a compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from upstream_scope import OUT_OF_SCOPE

TOOLS = Path(__file__).resolve().parent
ROOT = TOOLS.parent
REQUIRED = 0.95
TEST_TIMEOUT_S, FILE_TIMEOUT_S, SCRIPT_TIMEOUT_S = 120, 1800, 300

# Each in a process of its own; the value is what the device reports as its hardware. All of test_autocast is skipped unless
# that is a TPU, so torch_xla on a CPU passes none of it and it does not count.
TESTS = {
    "test_async_closures": "CPU",
    "test_core_aten_ops": "CPU",
    "test_devices": "CPU",
    "test_gradient_accumulation": "CPU",
    "test_inplace_update": "CPU",
    "test_metrics": "CPU",
    "test_operations": "CPU",
    "test_syncfree_optimizers": "CPU",
    "test_autocast": "TPU",
}


@dataclass(frozen=True)
class Script:
    """A script that has to run to its end.

    Attributes:
        path: in the checkout.
        arguments: of its command line.
        prints: a text that it has to print.
        hardware: what the device reports.
        smaller: constants in its source and what they become, so that it takes seconds on two cores.
    """

    path: str
    arguments: tuple[str, ...] = ()
    prints: str = ""
    hardware: str = "CPU"
    smaller: dict[str, str] = field(default_factory=dict)


_MNIST = ("--fake_data", "--num_epochs", "1", "--target_accuracy", "0")
_CHECKPOINT = {"torch.zeros(64, 1024, 14, 14": "torch.zeros(4, 1024, 14, 14"}
SCRIPTS = {
    "grad_checkpoint": Script("test/test_grad_checkpoint.py", smaller=_CHECKPOINT),
    "grad_checkpoint_autocast": Script("test/test_grad_checkpoint.py", ("--test_autocast",), smaller=_CHECKPOINT),
    "train_mp_mnist": Script("test/test_train_mp_mnist.py", _MNIST, "Max Accuracy"),
    "train_mp_mnist_ddp": Script("test/test_train_mp_mnist.py", (*_MNIST, "--ddp"), "Max Accuracy"),
    "train_mp_mnist_amp": Script("test/test_train_mp_mnist_amp.py", _MNIST, "Max Accuracy", hardware="TPU"),
    "train_resnet_base": Script(
        "examples/train_resnet_base.py",
        prints="Epoch 1 train end",
        smaller={"self.img_dim = 224": "self.img_dim = 64", "self.batch_size = 128": "self.batch_size = 4",
                 "self.num_steps = 300": "self.num_steps = 12"},
    ),
    "train_decoder_only_base": Script(
        "examples/train_decoder_only_base.py",
        ("--num-steps", "12", "--hidden-size", "128", "--intermediate-size", "512"),
        "Finished training",
        smaller={"self.batch_size = 16": "self.batch_size = 2", "self.seq_len = 512": "self.seq_len = 64"},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """What became of a test or script: "passed", "skipped", "failed", and why not."""

    outcome: str
    reason: str = ""


def environment(test_folder: Path, hardware: str) -> dict[str, str]:
    """Variables for the processes: Markstep's packages come first, then the stand-ins, then the checkout's helpers."""
    folders = [ROOT / "src", ROOT / "src/markstep/compat/names", TOOLS, TOOLS / "upstream_stand_ins", test_folder]
    chosen = {"PYTHONPATH": os.pathsep.join(map(str, folders)), "MARKSTEP_XLA_HARDWARE": hardware, "PYTHONUNBUFFERED": "1"}
    return {"MARKSTEP_BACKEND": "interpreter", **os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1", **chosen}


def run_tests(name: str, folder: Path) -> dict[str, Result]:
    """Runs one file of tests; after a crash or a hang it goes on behind the test that was to blame.

    Returns:
        Results by test, and under the name of the file when it cannot be imported.
    """
    results: dict[str, Result] = {}
    deadline = time.monotonic() + FILE_TIMEOUT_S
    while True:
        found, running, status = _one_process(name, folder, list(results), deadline)
        results.update(found)
        if running is None:
            if not results:
                results[f"{name}.py"] = Result("failed", f"pytest ended with status {status} before any test")
            return results
        results[running] = Result("failed", "hangs" if status is None else f"the process ended with status {status}")
        if time.monotonic() >= deadline:
            print(f"{name}: the {FILE_TIMEOUT_S} s for this file were over", file=sys.stderr)
            return results


def _one_process(
    name: str, folder: Path, done: Sequence[str], deadline: float
) -> tuple[dict[str, Result], str | None, int | None]:
    """Results, the test that was running when the process died, and its status."""
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "upstream_plugin", "-p", "no:cacheprovider", "-c", os.devnull),
        *("--import-mode=importlib", f"--rootdir={folder}", f"--timeout={TEST_TIMEOUT_S}", f"{name}.py"),
    ]
    with tempfile.TemporaryDirectory() as scratch:
        lines, output = Path(scratch) / "results", Path(scratch) / "output"
        lines.touch()
        variables = {**environment(folder, TESTS[name]), "UPSTREAM_RESULTS": str(lines), "UPSTREAM_DONE": json.dumps(done)}
        with output.open("wb") as sink:
            status = _wait(subprocess.Popen(command, cwd=folder, env=variables, stdout=sink, stderr=sink), lines, deadline)
        read = [json.loads(line) for line in lines.read_text().splitlines()]
        if not read and not done:
            print(output.read_text(errors="replace")[-2000:], file=sys.stderr)
    results: dict[str, Result] = {}
    for line in read:
        if line["outcome"] == "import":
            results[line["name"]] = Result("failed", f"cannot be imported: {line['reason']}")
        elif line["outcome"] != "started":
            results[line["name"]] = Result(line["outcome"], line["reason"])
    running = read[-1]["name"] if read and read[-1]["outcome"] == "started" else None
    return results, running, status


def _wait(process: subprocess.Popen[bytes], lines: Path, deadline: float) -> int | None:
    """The exit status; None when the process had to be killed, because pytest's own time limit did not end a test."""
    while True:
        try:
            return process.wait(2)
        except subprocess.TimeoutExpired:
            silent = time.time() - lines.stat().st_mtime
            if silent > TEST_TIMEOUT_S + 60 or time.monotonic() > deadline:
                process.kill()
                process.wait()
                return None


def run_script(script: Script, checkout: Path) -> Result:
    """Runs a script to its end."""
    command = [sys.executable, str(TOOLS / "upstream_script.py"), script.path, json.dumps(script.smaller), *script.arguments]
    try:
        done = subprocess.run(
            command, cwd=checkout, env=environment(checkout / "test", script.hardware),
            capture_output=True, text=True, timeout=SCRIPT_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Result("failed", f"still running after {SCRIPT_TIMEOUT_S} s")
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        return Result("failed", f"status {done.returncode}: {said[-1] if said else 'no message'}")
    if script.prints not in done.stdout:
        return Result("failed", f"ended without printing {script.prints!r}")
    return Result("passed")


def expected(name: str) -> list[str]:
    """Tests of a file that torch_xla 2.9.0 passes and that are in scope."""
    path = TOOLS / "upstream_passes" / f"{name}.txt"
    names = path.read_text().split() if path.exists() else []
    return [n for n in names if n not in OUT_OF_SCOPE]


def outcome_of(name: str, results: dict[str, Result]) -> Result:
    """The result of a test that torch_xla passes, also when its file could not be imported or it is missing."""
    file = name.split("::")[0]
    return results.get(name) or results.get(file) or Result("failed", "was not run")


def show_failures(failed: dict[str, Result]) -> None:
    """One line each."""
    for name, result in failed.items():
        print(f"  {name}: {result.outcome}: {result.reason[:240]}", flush=True)


def score(results: dict[str, Result], names: Sequence[str]) -> tuple[int, int]:
    """Prints how each file did and every failure; returns passes and tests among what torch_xla passes."""
    passed = total = 0
    for name in names:
        wanted = {n: outcome_of(n, results) for n in expected(name)}
        failed = {n: r for n, r in wanted.items() if r.outcome != "passed"}
        passed, total = passed + len(wanted) - len(failed), total + len(wanted)
        if not wanted:  # test_autocast
            own = {n: r for n, r in results.items() if n.startswith(f"{name}.py")}
            failed = {n: r for n, r in own.items() if r.outcome != "passed"}
            print(f"{name}: {len(own) - len(failed)} of {len(own)} (torch_xla skips them on a CPU; not part of the score)")
        else:
            print(f"{name}: {len(wanted) - len(failed)} of {len(wanted)}")
        show_failures(failed)
    return passed, total


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", default="", help="a clone of torch_xla at v2.9.0")
    parser.add_argument("--only", action="append", choices=[*TESTS, *SCRIPTS], metavar="NAME", help="a file or script; repeat")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there, too")
    args = parser.parse_args(argv)
    if not args.checkout or not (Path(args.checkout) / "test" / "test_operations.py").is_file():
        where = f"{args.checkout!r} has no test/test_operations.py" if args.checkout else "no checkout of torch_xla was named"
        parser.error(
            f"{where}. Get one with\n  git clone --depth 1 --branch v2.9.0 https://github.com/pytorch/xla\n"
            "and run\n  make upstream TORCH_XLA=path/to/xla"
        )
    return args


def main(argv: Sequence[str]) -> int:
    """Runs everything that was asked for and prints the score."""
    args = parse(argv)
    checkout = Path(args.checkout).resolve()
    chosen = args.only or [*TESTS, *SCRIPTS]
    results: dict[str, Result] = {}
    scripts: dict[str, Result] = {}
    for name in chosen:
        start = time.monotonic()
        if name in TESTS:
            results.update(run_tests(name, checkout / "test"))
        else:
            scripts[name] = run_script(SCRIPTS[name], checkout)
        print(f"ran {name} in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)

    files = [n for n in chosen if n in TESTS]
    passed, total = score(results, files)
    if scripts:
        print(f"scripts: {sum(r.outcome == 'passed' for r in scripts.values())} of {len(scripts)} run to their end")
        show_failures({n: r for n, r in scripts.items() if r.outcome != "passed"})
        for name in scripts:
            for old, new in SCRIPTS[name].smaller.items():
                print(f"  {name} ran with `{new}` in place of `{old}`")
    left_out = [n for n in OUT_OF_SCOPE if n.split(".py::")[0] in files]
    if left_out:
        print(f"out of scope: {len(left_out)} tests about XLA itself, named in tools/upstream_scope.py")
    if "test_core_aten_ops" in files:
        print("test_core_aten_ops ran exported programs on the xla device in place of their translation to StableHLO")
    if args.json:
        everything = {n: asdict(r) for n, r in {**results, **scripts}.items()}
        args.json.write_text(json.dumps({"passed": passed, "total": total, "results": everything}, indent=1) + "\n")
    if not total:
        return int(any(r.outcome != "passed" for r in [*results.values(), *scripts.values()]))
    print(f"upstream: {passed} of {total} ({100 * passed / total:.1f} %) of what torch_xla 2.9.0 passes")
    return int(passed < REQUIRED * total)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
