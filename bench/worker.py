"""A process that trains on command, so that contenders take turns and noise of the machine hits all the same.

`python -m bench.worker SPEC`, SPEC in JSON: `model`, `dtype`, `device`, `contender`, `seed`, `threads`.
Commands come on standard input and answers go to standard output, one line of JSON each; in between the process is
blocked on the pipe. What libraries print goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from statistics import mean, median
from typing import Any

import torch

from bench import memory
from bench.contenders import CONTENDERS
from bench.models import CASES
from bench.training import Training

Answer = dict[str, Any]
# So long a contender that compiles in the background is measured while it does; then its training rests, to get it over with.
_BESIDE_S = 20.0


class Worker:
    """One contender on one model. Each public method is a command."""

    def __init__(self, spec: dict[str, Any]) -> None:
        case = CASES[spec["model"]]
        self._training = Training(case, spec["dtype"], spec["device"], seed=spec["seed"])
        self._contender = CONTENDERS[spec["contender"]](self._training)

    def use(self, optimizer: str) -> Answer:
        """Chooses the implementation of AdamW, before the first step; it is the fused one otherwise."""
        self._training.use(optimizer)
        return {}

    def steps(self, count: int) -> Answer:
        """Runs `count` steps; `seconds`: of one step, on average."""
        start = time.perf_counter()
        for _ in range(count):
            self._training.advance()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        seconds = (time.perf_counter() - start) / count
        self._training.settle()
        return {"seconds": seconds}

    def warm(self, patience: float) -> Answer:
        """Runs steps until full speed is reached, or for `patience` seconds; see `_BESIDE_S`.

        Returns:
            first_step_s: of the first step.
            ready_s: from the start of the first step to the end of the last one below full speed; None: never.
            before_ready_s: steps after the first before compiled code came into play, if any: median and mean.
            peak_bytes, peak_allocated_bytes: so far; they start anew afterwards.
            and what the contender says about itself.
        """
        parent = os.getppid()
        self._training.touch()
        start = time.perf_counter()
        times: list[tuple[str, float]] = []
        reached, beside = 0.0, 0
        while True:
            seconds = self.steps(1)["seconds"]
            phase = self._contender.phase()
            times.append((phase, seconds))
            elapsed = time.perf_counter() - start
            if phase in ("compiling", "trial"):
                reached = elapsed
            if elapsed <= _BESIDE_S:
                beside = len(times)
            if phase == "ready" or elapsed > patience:
                break
            if phase == "compiling" and self._contender.in_background and elapsed > _BESIDE_S:
                time.sleep(max(0.5, 4 * seconds))
            if os.getppid() != parent:
                sys.exit("the benchmark has ended")
        before = [seconds for phase, seconds in times[1:beside] if phase == "compiling"]
        peaks = {"peak_bytes": memory.peak(), "peak_allocated_bytes": memory.peak_allocated()}
        memory.restart_peak()
        return {
            "first_step_s": times[0][1],
            "ready_s": reached if times[-1][0] == "ready" else None,
            "before_ready_s": [median(before), mean(before)] if before else None,
            "warm_steps": len(times),
            **peaks,
            **self._contender.figures(),
        }

    def where(self, steps: int) -> Answer:
        """See `bench.where`."""
        from bench.where import split

        return split(self._training, steps)

    def finish(self) -> Answer:
        """The peaks since the warm-up, what is held now, the losses of all steps, and the contender's figures."""
        return {
            "steady_peak_bytes": memory.peak(),
            "steady_peak_allocated_bytes": memory.peak_allocated(),
            "anonymous_bytes": memory.anonymous(),
            "losses": self._training.losses,
            **self._contender.figures(),
        }


class Probe:
    """Side measurements on a model that must not disturb its contenders. Each public method is a command."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._case, self._dtype, self._device = CASES[spec["model"]], spec["dtype"], spec["device"]

    def optimizer(self) -> Answer:
        """See `bench.probe`."""
        from bench.probe import optimizer_seconds

        return optimizer_seconds(self._case, self._device)

    def floor(self) -> Answer:
        """See `bench.floor`."""
        from bench.floor import floor

        return floor(self._case, self._dtype, self._device)

    def trace(self) -> Answer:
        """See `bench.trace`."""
        from bench.trace import trace_cost

        return trace_cost(self._case, self._dtype)


def serve(spec: dict[str, Any], read: Callable[[], str], write: Callable[[str], None]) -> None:
    """Answers commands until the input ends; the first answer says that the model is built."""

    def answer(work: Callable[[], Answer]) -> None:
        try:
            result = work()
        except Exception:
            result = {"error": traceback.format_exc()}
        write(json.dumps(result))

    served: Any = None

    def build() -> Answer:
        nonlocal served
        torch.set_num_threads(spec["threads"])
        served = Probe(spec) if spec["contender"] == "probe" else Worker(spec)
        return {"device": torch.cuda.get_device_name() if spec["device"] == "cuda" else "cpu"}

    answer(build)
    while line := read():
        command = json.loads(line)
        name = command.pop("do")
        answer(lambda: getattr(served, name)(**command))  # noqa: B023


def main() -> None:
    """The process."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    serve(json.loads(sys.argv[1]), sys.stdin.readline, lambda line: print(line, file=answers))


if __name__ == "__main__":
    main()
