"""The `markstep` command: run a script, run the benchmark, describe the environment."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import markstep
from markstep.engine.options import Options, enabled, resolve


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with `argv`, or with the arguments of the process; returns its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] == ["bench"]:  # its options are its own, --help included
        return _bench(given[1:])
    parser = _parser()
    args = parser.parse_args(given)
    if args.command == "env":
        print("\n".join(f"{name:<14}{value}" for name, value in _environment()))
        return 0
    if not args.module and (problem := _problem_with(Path(args.script))):
        parser.error(problem)
    if any(getattr(args, name) for name in ("nproc", "nnodes", "hosts", "rdzv")):
        from markstep.distributed.launcher import launch

        try:
            status = launch(args)
        except ValueError as error:
            parser.exit(2, f"markstep run: {error}\n")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # threads of torch's stores can abort an interpreter that ends, which would hide the status
    from markstep.distributed import launch_worker
    from markstep.launch import run_module, run_script

    if launch_worker.is_worker():
        launch_worker.prepare()
    if args.seed is not None:
        launch_worker.seed(args.seed)
    run = run_module if args.module else run_script
    run(args.script, args.arguments)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="markstep", description=markstep.__doc__)
    parser.add_argument("--version", action="version", version=f"markstep {markstep.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="run a PyTorch script, in one or several processes, with its training steps compiled",
        description="Run a PyTorch script as `python script.py ...` does, with its training steps compiled.",
        allow_abbrev=False,
    )
    _add_launch_options(run.add_argument_group("several processes", "docs/distributed-launch.md says more"))
    run.add_argument("-m", dest="module", action="store_true", help="SCRIPT is the name of a module, as in `python -m`")
    run.add_argument("script", help="a Python file")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")
    commands.add_parser("bench", help="compare with eager PyTorch and torch.compile (needs a checkout)", add_help=False)
    commands.add_parser("env", help="print versions, machine and options, for a bug report")
    return parser


def _add_launch_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--nproc", metavar="N", help="processes on this machine; auto: one for each GPU")
    group.add_argument("--nnodes", metavar="MIN[:MAX]", help="number of machines; the same command runs on each")
    group.add_argument("--rdzv", "--rdzv-endpoint", metavar="HOST:PORT", help="where the machines meet; all must reach it")
    group.add_argument("--rdzv-id", metavar="ID", help="name of the job, the same on all machines")
    group.add_argument("--rdzv-conf", metavar="K=V,...", action="append", default=[], help="settings of torch's rendezvous")
    group.add_argument("--local-addr", metavar="ADDRESS", help="by which other machines reach this one")
    group.add_argument("--hosts", metavar="A,B[:N]", help="start on these machines over ssh (and N processes on B)")
    group.add_argument("--ssh", metavar="COMMAND", help="ssh with its options; also MARKSTEP_SSH")
    group.add_argument("--max-restarts", metavar="R", type=int, default=0, help="start all processes again up to R times")
    group.add_argument("--grace", metavar="S", type=float, default=5.0, help="seconds from asking a process to end to killing it")
    group.add_argument("--seed", metavar="S", type=int, help="seed random, numpy and torch equally in each process")
    group.add_argument("--no-prefix", action="store_true", help="output without [rank] before each line")
    group.add_argument("--force", action="store_true", help="even if the script does not seem to train together")


def _problem_with(script: Path) -> str | None:
    if script.is_dir():
        return f"{script} is a folder: name the Python file to run"
    if not script.exists():
        return f"there is no file {script} in {Path.cwd()}: give the path of a Python script"
    return None


def _bench(arguments: list[str]) -> int:
    root = Path(__file__).resolve().parents[2]
    if not (root / "bench" / "cli.py").is_file():
        print(
            "markstep bench: the benchmark is not part of the installed package. Get the source of Markstep and in its "
            "folder run `make bench`, or `pip install -e '.[hf]'` and then `markstep bench`.",
            file=sys.stderr,
        )
        return 2
    sys.path.insert(0, str(root))
    from bench.cli import main as bench

    return int(bench(arguments))


def _environment() -> list[tuple[str, str]]:
    packages = ("torch", "numpy", "transformers", "accelerate", "lightning")
    lines = [("markstep", f"{markstep.__version__} in {Path(markstep.__file__).parent}")]
    lines += [(name, _version(name)) for name in packages]
    lines += [
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("system", platform.platform()),
        ("processor", f"{_processor()}, {len(os.sched_getaffinity(0))} usable cores"),
        ("threads", f"{torch.get_num_threads()} (within an operator), {torch.get_num_interop_threads()} (between)"),
        ("cuda", _cuda()),
        ("compiler", _compiler()),
        ("enabled", "yes" if enabled() else "no: MARKSTEP=0"),
        ("options", _options()),
    ]
    names = sorted(n for n in os.environ if n.startswith(("MARKSTEP", "TORCHINDUCTOR", "TORCH_COMPILE", "OMP_", "KMP_")))
    return lines + [("variable", f"{name}={os.environ[name]}") for name in names]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, platform.machine())} ({torch.backends.cpu.get_cpu_capability()})"


def _cuda() -> str:
    if not torch.cuda.is_available():
        return "not available"
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return f"{torch.version.cuda}: {names}"


def _compiler() -> str:
    path = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if path is None:
        return "none: install g++ or set CXX"
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path}: does not run ({error})"
    return f"{path}: {said[0] if said else 'says nothing about its version'}"


def _options() -> str:
    try:
        options = resolve({})
    except ValueError as error:
        return f"wrong: {error}"
    return ", ".join(f"{f.name}={getattr(options, f.name)}" for f in fields(Options))
