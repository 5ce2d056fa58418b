"""The command line of the benchmark."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import machine
from bench.contenders import CONTENDERS
from bench.measure import Settings, measure
from bench.models import CASES, DTYPES, SUITES, select
from bench.process import WorkerError
from bench.rows import Row, notes, rows_of, summary
from bench.table import LEGEND, details, table

_USUAL = ("torch.compile", "markstep")
_EFFORT = {"quick": {"rounds": 7, "turn_s": 0.25}, "full": {"rounds": 15, "turn_s": 1.0}}


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _positive(text: str) -> int:
    if text.isdecimal() and int(text):
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = argparse.ArgumentParser(
        prog="markstep bench",
        description="Eager PyTorch, torch.compile and Markstep train the same models, taking turns.",
        epilog=f"models: {', '.join(CASES)}",
    )
    p.add_argument("--suite", choices=sorted(SUITES), default="quick")
    p.add_argument("--models", type=_names, metavar="A,B", help="these models, each in fp32 and bf16, instead of the suite's")
    p.add_argument("--dtypes", type=_names, default=list(DTYPES), metavar="A,B", help="only these of fp32,bf16")
    p.add_argument(
        "--contenders",
        type=_names,
        default=list(_USUAL),
        metavar="A,B",
        help=f"besides eager; default: {','.join(_USUAL)}; others: 'markstep without PASS'",
    )
    p.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, after each model")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--threads", type=_positive, default=2, metavar="N", help="of each contender (default 2)")
    p.add_argument("--rounds", type=_positive, metavar="N", help="how often each has a turn")
    p.add_argument("--turn", type=float, metavar="SECONDS", help="length of a turn, at least one step")
    p.add_argument("--patience", type=float, default=900.0, metavar="SECONDS", help="longest warm-up (default 900)")
    p.add_argument("--once", action="store_true", help="no second process with full caches, no trace cost")
    p.add_argument("--where", action="store_true", help="where the time of a step goes, and its floor")
    p.add_argument("--loss-steps", type=int, default=0, metavar="N", help="go on to N steps to compare losses")
    p.add_argument("--seed", type=int, default=0)
    return p


def _check(p: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    for given, valid, what in ((args.dtypes, DTYPES, "dtype"), (args.contenders, CONTENDERS, "contender")):
        if unknown := [name for name in given if name not in valid]:
            p.error(f"unknown {what} {', '.join(unknown)}: use some of {', '.join(valid)}")
    if args.json and not args.json.resolve().parent.is_dir():
        p.error(f"--json: there is no folder {args.json.resolve().parent}")
    if args.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            p.error("--device cuda: this torch sees no CUDA device")


def _prepare_native(folder: Path) -> float:
    """Builds Markstep's C++ part once for all models; returns the seconds."""
    from markstep.record import native

    folder.mkdir(mode=0o700)
    start = time.perf_counter()
    try:
        native.load(folder)
    except native.NativeUnavailable as error:
        print(f"Markstep will train eagerly: {error}", file=sys.stderr)
    return time.perf_counter() - start


def _write(path: Path, rows: list[Row]) -> None:
    """The whole list, so that the file is complete at any time."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(rows, indent=1) + "\n")
    os.replace(partial, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints the table, and returns 1 when a contender failed or nothing was selected."""
    p = parser()
    args = p.parse_args(argv)
    _check(p, args)
    try:
        cases = select(args.suite, args.models, args.dtypes)
    except ValueError as error:
        p.error(str(error))
    effort = _EFFORT[args.suite]
    settings = Settings(
        contenders=tuple(name for name in args.contenders if name != "eager"),
        device=args.device,
        threads=args.threads,
        rounds=args.rounds or int(effort["rounds"]),
        turn_s=args.turn if args.turn is not None else effort["turn_s"],
        patience_s=args.patience,
        warm=not args.once,
        trace=not args.once,
        floor=args.where or (args.suite == "full" and not args.once),
        where=args.where,
        loss_steps=args.loss_steps,
        seed=args.seed,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` and the like: as Ctrl-C, keeps what there is
    place = {"machine": machine.processor(), "commit": machine.commit(), "torch": machine.torch_version()}
    print(f"torch {place['torch']}, commit {place['commit']}, {place['machine']}, {settings.threads} threads, "
          f"load {os.getloadavg()[0]:.1f} {machine.options_in_force(os.environ)}".rstrip())  # fmt: skip
    rows: list[Row] = []
    optimizers: dict[str, str] = {}
    scratch = Path(tempfile.mkdtemp(prefix="markstep-bench-"))
    try:
        if any(name.startswith("markstep") for name in settings.contenders):
            print(f"C++ part built in {_prepare_native(scratch / 'native'):.1f} s", file=sys.stderr)
        for number, (case, dtype) in enumerate(cases, 1):
            label = f"[{number}/{len(cases)}] {case.name} {dtype}"
            start = time.perf_counter()
            names = {"model": case.name, "dtype": dtype}
            try:
                match = measure(
                    case,
                    dtype,
                    settings,
                    scratch,
                    optimizers,
                    lambda text: print(f"{label}: {text}", file=sys.stderr),  # noqa: B023
                )
            except WorkerError as error:
                rows.append({**names, "contender": "eager", "error": str(error), **place})
            else:
                where = place if args.device == "cpu" else {**place, "machine": f"{match.device}; {place['machine']}"}
                rows += rows_of(match, names, where, optimizers[case.name])
            if args.json:
                _write(args.json, rows)
            print(f"{label}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if rows:
        print(table(rows), *notes(rows), *summary(rows), LEGEND, details(rows), sep="\n")
    return int(not rows or any("error" in row for row in rows))
