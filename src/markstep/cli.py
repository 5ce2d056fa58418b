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
    from markstep.launch import run_module, run_script

    if args.module:
        run_module(args.script, args.arguments)
        return 0
    if problem := _problem_with(Path(args.script)):
        parser.error(problem)
    run_script(args.script, args.arguments)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="markstep", description=markstep.__doc__)
    parser.add_argument("--version", action="version", version=f"markstep {markstep.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="run a PyTorch script with its training steps compiled",
        description="Run a PyTorch script as `python script.py ...` does, with its training steps compiled.",
    )
    run.add_argument("-m", dest="module", action="store_true", help="SCRIPT is the name of a module, as in `python -m`")
    run.add_argument("script", help="a Python file")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")
    commands.add_parser("bench", help="compare with eager PyTorch and torch.compile (needs a checkout)", add_help=False)
    commands.add_parser("env", help="print versions, machine and options, for a bug report")
    return parser


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
