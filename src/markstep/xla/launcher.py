"""`python -m torch_xla.distributed.xla_spawn` and `sm_dist`: start a script's `_mp_fn` in one process for each device."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from markstep.xla import spawn

_RESOURCES = Path("/opt/ml/input/config/resourceconfig.json")


def _parse(argv: Sequence[str] | None, prog: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=prog, description="Starts the function _mp_fn(index) of a script in several processes.")
    parser.add_argument("--num_gpus", type=int, default=None, help="processes on this machine (default: one for each device)")
    parser.add_argument("training_script", help="a .py file that defines _mp_fn(index)")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help="arguments of the script")
    return parser.parse_args(argv)


def _load(path: str) -> ModuleType:
    script = Path(path).resolve()
    if script.suffix != ".py" or not script.is_file():
        raise FileNotFoundError(f"there is no script {path!r}: give the path of a .py file")
    sys.path.insert(0, str(script.parent))
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[script.stem] = module
    spec.loader.exec_module(module)
    if not hasattr(module, "_mp_fn"):
        raise AttributeError(
            f"{path} has no function _mp_fn(index), which is what each process runs: add\n\ndef _mp_fn(index):\n    main()"
        )
    return module


def _in_worker(index: int, path: str, argv: list[str]) -> Any:
    sys.argv = argv
    return _load(path)._mp_fn(index)


def xla_spawn(argv: Sequence[str] | None = None) -> None:
    """`python -m torch_xla.distributed.xla_spawn --num_gpus N script.py --args`.

    Args:
        argv: arguments, by default those of the command line.

    Raises:
        AttributeError: the script has no `_mp_fn`.
        FileNotFoundError: there is no such script.
    """
    args = _parse(argv, "xla_spawn")
    _load(args.training_script)  # fails here rather than in every process
    script_argv = [args.training_script, *args.training_script_args]
    sys.argv = script_argv
    spawn.spawn(_in_worker, (args.training_script, script_argv), nprocs=args.num_gpus)


def sm_dist(argv: Sequence[str] | None = None) -> None:
    """`python -m torch_xla.distributed.sm_dist --num_gpus N script.py --args`: as `xla_spawn`, on all hosts of a SageMaker job.

    Args:
        argv: arguments, by default those of the command line.

    Raises:
        FileNotFoundError: this is no SageMaker job: there is no resource configuration.
    """
    if not _RESOURCES.is_file():
        raise FileNotFoundError(f"there is no {_RESOURCES}: sm_dist runs in SageMaker training jobs; elsewhere use xla_spawn")
    resources = json.loads(_RESOURCES.read_text())
    hosts = sorted(resources["hosts"])
    os.environ.setdefault("XRT_HOST_ORDINAL", str(hosts.index(resources["current_host"])))
    os.environ.setdefault("XRT_SHARD_WORLD_SIZE", str(len(hosts)))
    if len(hosts) > 1:
        os.environ.setdefault("XRT_MESH_SERVICE_ADDRESS", f"{hosts[0]}:53957")
    xla_spawn(argv)
