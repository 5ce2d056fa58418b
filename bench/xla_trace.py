"""What an optimizer's step costs the script on the xla device: microseconds a parameter, without the computation.

    python -m bench.xla_trace [--torch-xla /path/to/python]   # of an environment with torch 2.9.0 and torch_xla 2.9.0

On the device `optimizer.step()` only follows operators; they run at the barrier, which is not timed. Medians of the steps.
Markstep predicts here but does not compile (MARKSTEP_BACKEND=interpreter), so that every step is followed in the same way.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_OPTIMIZERS = {
    "SGD": {"lr": 0.01},
    "SGD, momentum": {"lr": 0.01, "momentum": 0.9},
    "Adam": {"lr": 1e-3},
    "AdamW": {"lr": 1e-3, "weight_decay": 0.1},
}
_WARM_UP = 12


def worker(device: str, parameters: int, steps: int) -> None:
    """Prints seconds of the optimizer's step per optimizer, on "cpu" or "xla"."""
    import torch

    end_step: Any = lambda: None  # noqa: E731
    place: Any = "cpu"
    if device == "xla":
        import torch_xla

        place, end_step = torch_xla.device(), torch_xla.sync
    medians = {}
    for name, arguments in _OPTIMIZERS.items():
        weights = [torch.nn.Parameter(torch.ones(8, device=place)) for _ in range(parameters)]
        optimizer = getattr(torch.optim, name.partition(",")[0])(weights, foreach=False, **arguments)
        times = []
        for _ in range(_WARM_UP + steps):
            for weight in weights:
                weight.grad = weight.detach() * 0.5
            start = time.perf_counter()
            optimizer.step()
            times.append(time.perf_counter() - start)
            end_step()
        medians[name] = statistics.median(times[_WARM_UP:])
    print(json.dumps(medians))


def _ask(command: list[str], env: dict[str, str], args: argparse.Namespace, device: str) -> dict[str, float]:
    numbers = ["--parameters", str(args.parameters), "--steps", str(args.steps)]
    done = subprocess.run(
        [*command, __file__, "--worker", device, *numbers], env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    answer: dict[str, float] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return answer


def main() -> None:
    """Prints a table: rows are optimizers, columns are devices."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-xla", metavar="PYTHON", help="interpreter of an environment with torch_xla 2.9.0")
    parser.add_argument("--parameters", type=int, default=200)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--worker", choices=("cpu", "xla"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        worker(args.worker, args.parameters, args.steps)
        return
    from bench import machine
    from bench.process import ROOT, environment

    with tempfile.TemporaryDirectory() as caches:
        env = {**environment(len(os.sched_getaffinity(0)), Path(caches)), "PJRT_DEVICE": "CPU"}
        ours = {**env, "MARKSTEP_BACKEND": "interpreter"}
        columns = {
            "xla device": _ask([sys.executable, "-m", "markstep", "run"], ours, args, "xla"),
            "eager on the CPU, with its computation": _ask([sys.executable], env, args, "cpu"),
        }
        if args.torch_xla:
            columns["torch_xla"] = _ask([args.torch_xla], {**env, "PYTHONPATH": str(ROOT)}, args, "xla")
    print(f"{machine.processor()}, commit {machine.commit()}; microseconds a parameter, {args.parameters} parameters")
    print(f"| optimizer (one by one) | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    for name in _OPTIMIZERS:
        print(f"| {name} | {' | '.join(f'{c[name] / args.parameters * 1e6:.0f}' for c in columns.values())} |")


if __name__ == "__main__":
    main()
