"""`markstep run --nproc N script.py`: a script in several processes, which train together."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import signal
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.agent.server import WorkerSpec
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters, RendezvousTimeoutError
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from markstep.distributed.launch_agent import Agent, say
from markstep.distributed.launch_failure import report
from markstep.distributed.launch_hosts import end_with_input, parse_hosts, run_on_hosts
from markstep.distributed.launch_output import Outputs
from markstep.distributed.launch_scan import module_file, scan
from markstep.distributed.launch_worker import LAUNCHED, SEED, chose_cpu, is_worker

__all__ = ["launch"]

_MONITOR_INTERVAL = 0.05  # seconds between looks at the workers


def launch(args: argparse.Namespace) -> int:
    """Runs a script in several processes; returns the exit status, that of the worker that failed first.

    Args:
        args: the options of `markstep run`.

    Raises:
        ValueError: the options do not fit together or to this machine, or the script does not train together with others.
    """
    if is_worker():
        raise ValueError(
            "this process is a worker already, started by torchrun or `markstep run`: leave --nproc and the other options of "
            "the launch out"
        )
    lowest, highest = _nodes(args.nnodes)
    hosts = parse_hosts(args.hosts) if args.hosts else []
    if highest > 1 and not args.rdzv:
        raise ValueError(
            "--nnodes with several hosts needs --rdzv HOST:PORT, the same on all: a host that all reach, a free port"
        )
    if hosts and args.nnodes:
        raise ValueError("--hosts names the hosts: leave --nnodes out")
    if not args.force and (max(highest, len(hosts)) > 1 or args.nproc not in (None, "1")):
        _check(args.script, args.module)
    rest = [*(["-m"] if args.module else []), args.script, *args.arguments]
    if hosts:
        ssh = args.ssh or os.environ.get("MARKSTEP_SSH") or "ssh -o BatchMode=yes"
        options = [*_options(args), "--force"]
        return run_on_hosts(hosts, options, rest, ssh=ssh, endpoint=args.rdzv or "", grace=args.grace)
    end_with_input()
    count = _count(args.nproc)
    several = highest > 1
    outputs = Outputs(
        copied=count > 1 or several,
        prefix=not args.no_prefix,
        environment=_variables(count, args.seed),
        several_hosts=several,
    )
    try:
        return _run(args, (lowest, highest), count, outputs, rest)
    finally:
        outputs.close()


def _run(args: argparse.Namespace, nodes: tuple[int, int], count: int, outputs: Outputs, rest: list[str]) -> int:
    endpoint = args.rdzv or "localhost:0"
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=endpoint,
        run_id=args.rdzv_id or ("markstep" if args.rdzv else str(uuid.uuid4())),
        min_nodes=nodes[0],
        max_nodes=nodes[1],
        local_addr=args.local_addr or (None if args.rdzv else "127.0.0.1"),
        **_configuration(args.rdzv_conf),
    )
    if nodes[1] > 1:
        say(f"waiting for {args.nnodes} hosts at {endpoint}")
    _quiet()
    try:
        handler = get_rendezvous_handler(parameters)
    except (RendezvousError, RuntimeError) as error:
        return _unreachable(endpoint, error)
    spec = WorkerSpec(
        role="markstep",
        local_world_size=count,
        rdzv_handler=handler,
        entrypoint=sys.executable,
        args=("-m", "markstep", "run", *(word.replace("$", "$$") for word in rest)),  # torch takes words for templates
        max_restarts=args.max_restarts,
        monitor_interval=_MONITOR_INTERVAL,
        local_addr=parameters.local_addr,
    )
    agent = Agent(spec, outputs, args.grace)
    try:
        agent.run()
    except SignalException as ended:
        say(f"{ended.sigval.name}: all workers are ended")
        return 128 + int(ended.sigval)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (RendezvousError, RuntimeError) as error:
        return _unreachable(endpoint, error)
    outputs.finish()
    if agent.failure is not None:
        text = report(agent.failure, agent.others, here=agent.failed_here(), several_hosts=agent.hosts > 1)
        print(text, file=sys.stderr, flush=True)
    with suppress(RendezvousError, RuntimeError):
        handler.shutdown()
    agent.part()
    return agent.failure.exit_status if agent.failure else 0


def _nodes(text: str | None) -> tuple[int, int]:
    lowest, _, highest = (text or "1").partition(":")
    if not lowest.isdecimal() or not (highest or lowest).isdecimal() or not 1 <= int(lowest) <= int(highest or lowest):
        raise ValueError(f"--nnodes {text}: give a number of hosts, or MIN:MAX")
    return int(lowest), int(highest or lowest)


def _count(given: str | None) -> int:
    gpus = 0 if chose_cpu() else torch.cuda.device_count()
    if given in (None, "auto"):
        count = gpus or 1
        why = "one for each GPU" if gpus else "as there is no GPU, or the CPU was chosen; give a number for more"
        say(f"--nproc auto: {count} process{'es' if count > 1 else ''}, {why}")
        return count
    if not given.isdecimal() or int(given) < 1:
        raise ValueError(f"--nproc {given}: give a number of processes, or auto")
    if 0 < gpus < int(given):
        raise ValueError(
            f"--nproc {given}, but there are {gpus} GPUs, and each process needs its own: give at most {gpus}, or set "
            "MARKSTEP_DEVICE=cpu to train on the CPU"
        )
    return int(given)


def _check(script: str, is_module: bool) -> None:
    path = module_file(script) if is_module else Path(script)
    if path is None:
        return  # Python will say what is wrong with it
    found = scan(path, Path.cwd() if is_module else None)
    if found.multiprocessing:
        raise ValueError(
            f"{script} starts processes of its own ({found.multiprocessing}: torch.multiprocessing.spawn), so --nproc would "
            "start them several times: leave --nproc out, or let the script run its function once, with the rank from RANK; "
            "--force runs it anyway"
        )
    if not found.signs:
        raise ValueError(
            f"{script} does not train together with other processes, so each of them would train alone on the same data. Nothing "
            "was started. Do one of these: call torch.distributed.init_process_group() and wrap the model in "
            "torch.nn.parallel.DistributedDataParallel; define _mp_fn(index) for torch_xla; or use Trainer, Accelerate or "
            "Lightning. If it does one of them in code that is not beside it, add --force"
        )


def _variables(count: int, seed: int | None) -> dict[str, str]:
    chosen = {LAUNCHED: str(os.getpid())}
    if "OMP_NUM_THREADS" not in os.environ and count > 1:
        chosen["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // count))
    if seed is not None:
        chosen[SEED] = str(seed)
    return chosen


def _options(args: argparse.Namespace) -> list[str]:
    """The options that the launchers of other hosts get."""
    chosen = ["--max-restarts", str(args.max_restarts), "--grace", str(args.grace)]
    for name, value in (("--nproc", args.nproc), ("--seed", args.seed), ("--rdzv-id", args.rdzv_id or uuid.uuid4().hex)):
        chosen += [name, str(value)] if value is not None else []
    return [*chosen, *(["--no-prefix"] if args.no_prefix else [])]


def _configuration(text: list[str]) -> dict[str, Any]:
    pairs = [part.partition("=") for part in ",".join(text).split(",") if part]
    if wrong := [name for name, sign, value in pairs if not sign or not value]:
        raise ValueError(f"--rdzv-conf {wrong[0]}: give NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _quiet() -> None:
    """The agent's own messages say less than the report at the end, unless LOGLEVEL asks for them."""
    if "LOGLEVEL" not in os.environ:
        for name in list(logging.root.manager.loggerDict):
            if name.startswith("torch.distributed.elastic"):
                logging.getLogger(name).setLevel(logging.CRITICAL)


def _unreachable(endpoint: str, error: Exception) -> int:
    if isinstance(error, RendezvousTimeoutError):
        why = "not all hosts came: is the command running on each, with the same --rdzv and --rdzv-id, and may they connect?"
    else:
        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    say(f"no contact with the other launchers at {endpoint}: {why}")
    say(f"check that its host is up and that a firewall or security group lets all hosts reach it: {shlex.join(_try(endpoint))}")
    return 1


def _try(endpoint: str) -> list[str]:
    host, _, port = endpoint.rpartition(":")
    return ["nc", "-zv", host, port]
