"""Markstep's xla device beside torch_xla, Markstep's plain door and eager PyTorch, on one script, taking turns.

    python -m bench.xla_device --torch-xla /path/to/python   # of an environment with torch 2.9.0, torch_xla 2.9.0, transformers

Ratios are medians of paired rounds, step time over that of the xla device: above 1 the device is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from bench import machine
from bench.process import ROOT, of_xla_scripts

_WORKER = str(ROOT / "bench" / "xla_worker.py")


class Contender:
    """A process that trains on command."""

    def __init__(self, name: str, command: list[str], env: dict[str, str], model: str, dtype: str) -> None:
        self.name, self.times = name, list[float]()
        self.process = subprocess.Popen(
            [*command, _WORKER, name, model, dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            cwd=ROOT,
            text=True,
        )
        self.greeting = self.answer()

    def answer(self) -> Any:
        """The next line of the process as data.

        Raises:
            RuntimeError: the process has ended.
        """
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"{self.name} ended: run {' '.join(map(str, self.process.args))} by hand to see why")  # type: ignore[arg-type]

    def train(self, steps: int) -> None:
        """Trains so many steps."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        self.times.append(self.answer()["ms"])

    def finish(self) -> Any:
        """Ends the process; its losses and peak memory."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        result = self.answer()
        self.process.wait()
        return result


def measure(model: str, dtype: str, torch_xla: str | None, rounds: int, steps: int, threads: int) -> None:
    """Prints one row for each contender."""
    with tempfile.TemporaryDirectory() as caches:
        ways = of_xla_scripts(threads, Path(caches), torch_xla)
        names = ["xla", "markstep", *(name for name in ways if name != "xla")]
        contenders = []
        for name in names:
            command, env = ways["eager" if name == "markstep" else name]
            contenders.append(Contender(name, command, {**env, "MARKSTEP_BACKGROUND": "0"}, model, dtype))
        for i in range(rounds):
            first = i % len(contenders)  # what one leaves behind (threads, memory) does not always meet the same other
            for contender in (*contenders[first:], *contenders[:first]):
                contender.train(steps)
        for contender in contenders:
            ratios = [t / own for t, own in zip(contender.times, contenders[0].times, strict=True)]
            low, _, high = statistics.quantiles(ratios, n=4)
            end = contender.finish()
            print(
                f"| {model} | {dtype} | {contender.name} (torch {contender.greeting['torch']}) | "
                f"{statistics.median(contender.times):.1f} | {statistics.median(ratios):.2f} ({low:.2f}–{high:.2f}) | "
                f"{end['peak_mib']:.0f} | {contender.greeting['warm_up_s']:.0f} | {end['losses'][-1]:.4f} |",
                flush=True,
            )


def main() -> None:
    """Measures BERT and ResNet, small, in fp32 and bf16."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-xla", metavar="PYTHON", help="interpreter of an environment with torch_xla 2.9.0")
    parser.add_argument("--models", default="bert-small,resnet-small")
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=20, help="steps of a round; in the first ones memory and threads are cold")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    print(f"{machine.processor()}, commit {machine.commit()}, {args.threads} threads")
    print(
        "| model | dtype | contender | step, ms | its time over the xla device's | peak, MiB | first 16 steps, s | fifth loss |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for model in args.models.split(","):
        for dtype in args.dtypes.split(","):
            measure(model, dtype, args.torch_xla, args.rounds, args.steps, args.threads)


if __name__ == "__main__":
    main()
