"""Data-parallel training on one machine: Markstep beside DistributedDataParallel, eager and with torch.compile, taking turns.

    python -m bench.data_parallel --world 2

Ratios are medians of paired rounds, step time over Markstep's: above 1 Markstep is faster. Each process has its share of the
cores as threads. The time of a round is that of its slowest process.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import machine
from bench.process import ROOT, environment

_CONTENDERS = ("markstep", "ddp", "ddp+torch.compile")


class Group:
    """The processes of a contender."""

    def __init__(self, name: str, model: str, dtype: str, world: int, env: dict[str, str]) -> None:
        self.name, self.times = name, list[float]()
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    str(ROOT / "bench" / "data_parallel_worker.py"),
                    name,
                    model,
                    dtype,
                    str(rank),
                    str(world),
                    str(port),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=env,
                cwd=ROOT,
                text=True,
            )
            for rank in range(world)
        ]
        self.warm_up_s = self.answers()[0]["warm_up_s"]

    def answers(self) -> list[Any]:
        """The next line of each process as data.

        Raises:
            RuntimeError: one of them has ended.
        """
        found = []
        for process in self.processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"{self.name} ended: run {' '.join(map(str, process.args))} by hand to see why")  # type: ignore[arg-type]
            found.append(json.loads(line))
        return found

    def train(self, steps: int) -> None:
        """Trains so many steps."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{steps}\n")
            process.stdin.flush()
        self.times.append(max(a["ms"] for a in self.answers()))

    def finish(self) -> list[Any]:
        """Ends the processes; their losses and the hashes of their parameters."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        found = self.answers()
        for process in self.processes:
            process.wait()
        return found


def measure(model: str, dtype: str, world: int, rounds: int, steps: int) -> None:
    """Prints one row for each contender."""
    threads = max(1, len(os.sched_getaffinity(0)) // world)
    with tempfile.TemporaryDirectory() as caches:
        env = {**environment(threads, Path(caches)), "MARKSTEP_BACKGROUND": "0"}
        groups = [Group(name, model, dtype, world, env) for name in _CONTENDERS]
        for i in range(rounds):
            first = i % len(groups)
            for group in (*groups[first:], *groups[:first]):
                group.train(steps)
        for group in groups:
            ratios = [t / own for t, own in zip(group.times, groups[0].times, strict=True)]
            low, _, high = statistics.quantiles(ratios, n=4)
            ends = group.finish()
            same = "equal" if len({e["hash"] for e in ends}) == 1 else "DIFFERENT"
            compiled = f"{ends[0]['compiled']} of {ends[0]['steps']}" if group.name == "markstep" else ""
            print(
                f"| {model} | {dtype} | {world} x {threads} | {group.name} | {statistics.median(group.times):.0f} | "
                f"{statistics.median(ratios):.2f} ({low:.2f}–{high:.2f}) | {group.warm_up_s:.0f} | {same} | {compiled} | "
                f"{ends[0]['loss']:.4f} |",
                flush=True,
            )


def main() -> None:
    """Measures BERT and ResNet, small."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="bert-small,resnet-small")
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--world", default="2", help="numbers of processes, separated by commas")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="steps of a round")
    args = parser.parse_args()
    print(f"{machine.processor()}, commit {machine.commit()}, gloo on one machine")
    print(
        "| model | dtype | processes x threads | contender | step, ms | its time over Markstep's | first 16 steps, s | "
        "parameters | compiled steps | fifth loss |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for world in map(int, args.world.split(",")):
        for model in args.models.split(","):
            for dtype in args.dtypes.split(","):
                measure(model, dtype, world, args.rounds, args.steps)


if __name__ == "__main__":
    main()
