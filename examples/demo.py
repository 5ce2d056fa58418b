"""The main job, side by side: a BERT learns English from real text, once with eager PyTorch and once with Markstep.

Both run in processes of their own and take turns, so that whatever else the machine does hits both. Dropout is off, so that
the two loss curves can be compared digit by digit. Run it with `make demo`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

BATCH, LENGTH, VOCABULARY = 8, 128, 8192
ROUNDS, STEPS = 12, 5
PATIENCE_S = 420


def english() -> list[int]:
    """The text of Python's own help pages (about 700 KB of English) as word numbers; 0 is padding, 1 the mask, 2 rare."""
    from pydoc_data import topics

    words = re.findall(r"[a-z]+|[^\sa-z]", " ".join(topics.topics.values()).lower())
    known = {w: i + 3 for i, (w, _) in enumerate(Counter(words).most_common(VOCABULARY - 3))}
    return [known.get(w, 2) for w in words]


def batches(seed: int) -> Iterator[tuple[Any, Any]]:
    """Endless batches for masked language modelling: 15 % of the words are hidden, and have to be guessed."""
    import torch

    text, chance = torch.tensor(english()), random.Random(seed)
    noise = torch.Generator().manual_seed(seed)
    while True:
        starts = [chance.randrange(len(text) - LENGTH) for _ in range(BATCH)]
        ids = torch.stack([text[s : s + LENGTH] for s in starts])
        hidden = torch.rand(ids.shape, generator=noise) < 0.15
        yield ids.masked_fill(hidden, 1), ids.masked_fill(~hidden, -100)


def training(dtype: str, markstep_on: bool) -> Callable[[], float]:
    """Builds model and optimizer; returns a function that does one step and gives its loss."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    size = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536}
    model = BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=20)
    data = batches(seed=1)

    def train_step(ids: Any, labels: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss.detach()

    if markstep_on:
        import markstep

        train_step = markstep.compile(train_step)  # the one line

    return lambda: float(train_step(*next(data)))


def worker(who: str, dtype: str) -> None:
    """One of the two processes: reads "run N" or "finish" from stdin, answers with one line of JSON."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    step = training(dtype, who == "markstep")
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        command = line.split()
        if command[0] == "run":
            losses, times = [], []
            for _ in range(int(command[1])):
                start = time.perf_counter()
                losses.append(step())
                times.append(time.perf_counter() - start)
            answer = {"losses": losses, "times": times, "settled": who == "eager" or is_settled()}
        else:
            peak = next(int(x.split()[1]) for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
            answer = {"peak_mb": peak / 1024, "explain": explanation() if who == "markstep" else ""}
        print(json.dumps(answer), file=answers, flush=True)


def is_settled() -> bool:
    """Has Markstep compiled its program and measured whether it is faster?"""
    import markstep

    return any(p.compiled_ms is not None or "does not compile" in p.state for p in markstep.explain().programs)


def explanation() -> str:
    import markstep

    return str(markstep.explain())


class Side:
    """The parent's end of a worker."""

    def __init__(self, who: str, dtype: str) -> None:
        command = [sys.executable, "-W", "ignore", __file__, "--worker", who, "--dtype", dtype]
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.losses: list[float] = []
        self.times: list[float] = []

    def ask(self, command: str) -> dict[str, Any]:
        """Sends a command and waits for the answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(command, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the {self.process.args[5]} process ended early; its messages are above")  # type: ignore[index]
        answer: dict[str, Any] = json.loads(line)
        self.losses += answer.get("losses", [])
        return answer


def bar(done: float, text: str) -> None:
    """Draws a progress bar over the current line."""
    filled = int(30 * min(done, 1.0))
    end = "\r" if sys.stdout.isatty() else "\n"
    print(f"[{'#' * filled}{'.' * (30 - filled)}] {text:<70}", end=end, flush=True)


def warm_up(eager: Side, ours: Side) -> list[float]:
    """Steps of both in turns until Markstep has compiled; returns how much slower it was meanwhile."""
    start, ratios = time.monotonic(), []
    shown = 0.0
    while True:
        mine, theirs = ours.ask("run 1"), eager.ask("run 1")
        if len(ours.losses) > 3:
            ratios.append(mine["times"][0] / theirs["times"][0])
        passed = time.monotonic() - start
        if sys.stdout.isatty() or passed > shown:
            bar(
                passed / 180,
                f"{len(ours.losses)} steps; training eagerly while a child process compiles, {passed:.0f} s",
            )
            shown = passed + 15
        if mine["settled"] or passed > PATIENCE_S:
            print()
            return ratios


def measure(eager: Side, ours: Side) -> tuple[list[float], list[float]]:
    """Blocks of steps in turns: medians of each block."""
    theirs, mine = [], []
    for i in range(ROUNDS):
        theirs.append(median(eager.ask(f"run {STEPS}")["times"]))
        mine.append(median(ours.ask(f"run {STEPS}")["times"]))
        if sys.stdout.isatty() or i % 4 == 3:
            bar((i + 1) / ROUNDS, f"measuring: round {i + 1} of {ROUNDS}, {STEPS} steps each, in turns")
    print()
    return theirs, mine


def main(dtype: str) -> None:
    words = len(english())
    print("Masked language modelling: BERT (6 layers, 384 wide) from random weights on the text of Python's help pages")
    print(f"({words:,} words, vocabulary {VOCABULARY:,}, batches of {BATCH} x {LENGTH}, {dtype}); AdamW, clipping, schedule.\n")
    eager, ours = Side("eager", dtype), Side("markstep", dtype)
    meanwhile = warm_up(eager, ours)
    theirs, mine = measure(eager, ours)
    ends = eager.ask("finish"), ours.ask("finish")

    print("\nLoss, the same batches in both:\n   step      eager   Markstep")
    count = min(len(eager.losses), len(ours.losses))
    for i in sorted({0, 1, 2, 4, 9, *range(19, count, max(20, count // 6)), count - 1}):
        print(f"  {i + 1:5d} {eager.losses[i]:10.4f} {ours.losses[i]:10.4f}")
    difference = max(abs(a - b) / abs(a) for a, b in zip(eager.losses, ours.losses, strict=False))
    print(f"  largest relative difference over {count} steps: {difference:.1e}")

    ratios = [a / b for a, b in zip(theirs, mine, strict=True)]
    low, _, high = quantiles(ratios, n=4)
    tokens = BATCH * LENGTH
    print("\nSpeed after compilation (medians of interleaved rounds):")
    print(f"  eager    {median(theirs) * 1e3:8.1f} ms a step  {tokens / median(theirs):8.0f} words a second")
    print(f"  Markstep {median(mine) * 1e3:8.1f} ms a step  {tokens / median(mine):8.0f} words a second")
    print(f"  Markstep is {median(ratios):.2f}x as fast as eager (middle half of the rounds: {low:.2f} to {high:.2f})")
    if meanwhile:
        print(f"  while it was compiling, a step took {median(meanwhile):.2f} times as long as eager's")
    print("\nPeak memory of the process (VmHWM):")
    print(f"  eager {ends[0]['peak_mb']:.0f} MB, Markstep {ends[1]['peak_mb']:.0f} MB")
    print(f"\nWhat Markstep did (markstep.explain()):\n{ends[1]['explain']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="bf16", help="bf16 means autocast")
    parser.add_argument("--worker", choices=("eager", "markstep"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given.worker, given.dtype)
    else:
        main(given.dtype)
