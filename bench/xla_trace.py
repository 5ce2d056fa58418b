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
_TITLES = {"xla": "xla device", "eager": "eager on the CPU, with its computation", "torch_xla": "torch_xla"}
_WARM_UP = 12


def worker(name: str, parameters: int, steps: int) -> None:
    """Prints seconds of the optimizer's step per optimizer, on the CPU ("eager") or on the xla device."""
    import torch

    end_step: Any = lambda: None  # noqa: E731
    place: Any = "cpu"
    if name != "eager":
        import torch_xla

        place, end_step = torch_xla.device(), torch_xla.sync
    medians = {}
    for kind, arguments in _OPTIMIZERS.items():
        weights = [torch.nn.Parameter(torch.ones(8, device=place)) for _ in range(parameters)]
        optimizer = getattr(torch.optim, kind.partition(",")[0])(weights, foreach=False, **arguments)
        times = []
        for _ in range(_WARM_UP + steps):
            for weight in weights:
                weight.grad = weight.detach() * 0.5
            start = time.perf_counter()
            optimizer.step()
            times.append(time.perf_counter() - start)
            end_step()
        medians[kind] = statistics.median(times[_WARM_UP:])
    print(json.dumps(medians))


def _ask(command: list[str], env: dict[str, str], args: argparse.Namespace, name: str) -> dict[str, float]:
    numbers = ["--parameters", str(args.parameters), "--steps", str(args.steps)]
    env = {**env, "MARKSTEP_BACKEND": "interpreter"}
    done = subprocess.run(
        [*command, __file__, "--worker", name, *numbers], env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    answer: dict[str, float] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return answer


def main() -> None:
    """Prints a table: rows are optimizers, columns are devices."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-xla", metavar="PYTHON", help="interpreter of an environment with torch_xla 2.9.0")
    parser.add_argument("--parameters", type=int, default=200)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--worker", choices=tuple(_TITLES), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        worker(args.worker, args.parameters, args.steps)
        return
    from bench import machine
    from bench.process import of_xla_scripts

    with tempfile.TemporaryDirectory() as caches:
        ways = of_xla_scripts(len(os.sched_getaffinity(0)), Path(caches), args.torch_xla)
        columns = {_TITLES[name]: _ask(command, env, args, name) for name, (command, env) in ways.items()}
    print(f"{machine.processor()}, commit {machine.commit()}; microseconds a parameter, {args.parameters} parameters")
    print(f"| optimizer (one by one) | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    for name in _OPTIMIZERS:
        print(f"| {name} | {' | '.join(f'{c[name] / args.parameters * 1e6:.0f}' for c in columns.values())} |")


if __name__ == "__main__":
    main()
