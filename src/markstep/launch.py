"""`markstep run script.py`: an unmodified script; steps end where an optimizer's step ends.

In a worker, a script that leaves it to its launcher to call `_mp_fn` is imported, and `_mp_fn` called.
"""

from __future__ import annotations

import builtins
import importlib
import os
import runpy
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import torch

from markstep.compat.exposing import expose_torch_xla
from markstep.distributed.launch_failure import record
from markstep.distributed.launch_scan import module_file, scan
from markstep.distributed.launch_worker import is_worker, tell_accelerate
from markstep.engine import patches, threads
from markstep.engine.options import Options, enabled, resolve
from markstep.engine.region import Place, hot_path
from markstep.engine.stretch import Stretch, trains_on_xla

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def run_script(path: str, args: Sequence[str]) -> None:
    """Runs a Python file as `python path args...` would, with training steps compiled.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no script {path!r}: give the path of a Python file")
    sys.argv = [path, *args]
    _offer_names(Path(path).read_text(errors="replace"))
    start = _call_mp_fn if is_worker() and scan(Path(path)).wants_mp_fn else _execute
    _run(lambda: start(os.path.abspath(path)), os.path.dirname(os.path.realpath(path)))


def run_module(name: str, args: Sequence[str]) -> None:
    """Runs a module as `python -m name args...` would, with training steps compiled."""
    sys.argv = [name, *args]
    path = module_file(name)
    _offer_names(path.read_text(errors="replace") if path else "")
    if path and is_worker() and scan(path, Path.cwd()).wants_mp_fn:
        sys.argv[0] = str(path)
        _run(lambda: importlib.import_module(name)._mp_fn(_ordinal()), os.getcwd())
    else:
        _run(lambda: runpy.run_module(name, run_name="__main__", alter_sys=True), os.getcwd())


def _offer_names(source: str) -> None:
    """`import torch_xla` and `import smdistributed` give Markstep's, unless there is a real one.

    Transformers and Accelerate move every job to the xla device when they can import torch_xla. They do so here only if the
    script is written for it; other scripts are compiled as they are.
    """
    expose_torch_xla()
    if "smddp" in source:
        importlib.import_module("markstep.distributed.smddp")  # the import that makes it known is easily forgotten
    asked = any(word in source for word in ("torch_xla", "_mp_fn")) or "PJRT_DEVICE" in os.environ
    if not asked and "sagemaker_training_compiler_enabled" not in os.environ.get("SM_FRAMEWORK_PARAMS", ""):
        os.environ.setdefault("USE_TORCH_XLA", "0")
        tell_accelerate()


def _run(start: Callable[[], object], folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path[0] = folder  # the folder of the `markstep` command is not for the script
    try:
        if not enabled():
            start()
            return
        with Automatic(resolve({})):
            start()
    except SystemExit as ended:
        if ended.code:
            record(ended, None)
        raise
    except BaseException as error:
        if is_worker():
            record(error, _without_launcher(error.__traceback__, isinstance(error, KeyboardInterrupt)))
        hook = sys.excepthook  # the script may have set its own

        def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            seen = _without_launcher(trace, isinstance(error, KeyboardInterrupt))
            hook(kind, error.with_traceback(seen), seen)

        sys.excepthook = show
        raise


def _execute(path: str, name: str = "__main__") -> ModuleType:
    """Unlike `runpy.run_path` this leaves the script's module in place, for threads and exit handlers."""
    main = ModuleType(name)
    loader = SourceFileLoader(name, path)
    vars(main).update(__file__=path, __cached__=None, __loader__=loader, __builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = sys.modules[name] = main
    exec(compile(loader.get_data(path), path, "exec", dont_inherit=True), vars(main))
    return main


def _call_mp_fn(path: str) -> None:
    """As a worker of xmp.spawn does it, the script is no `__main__`: what it does under that name would train a second time."""
    name = Path(path).stem
    _execute(path, "__mp_main__" if name in sys.modules else name)._mp_fn(_ordinal())


def _ordinal() -> int:
    return int(os.environ["RANK"])


def _without_launcher(trace: TracebackType | None, interrupted: bool) -> TracebackType | None:
    """The part of a traceback that plain `python` would show.

    Frames of Markstep further down go too, with the one that calls the operator, unless the error is Markstep's own.
    Where Markstep was when it was interrupted is of no interest.
    """
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    files = [t.tb_frame.f_code.co_filename for t in frames]
    own = [f.startswith(_PACKAGE) for f in files]
    first = next(i for i, t in enumerate(frames) if t.tb_frame.f_code is _run.__code__) + 1
    while first < len(frames) and files[first] == __file__:
        first += 1
    shown = list(range(first, len(frames)))
    if interrupted:
        shown = [i for i in shown if not any(own[first : i + 1])]
    elif not own[-1]:
        shown = [i for i in shown if not own[i] and not (files[i] == torch._ops.__file__ and own[i - 1])]
    following = None
    for i in reversed(shown):
        frames[i].tb_next = following
        following = frames[i]
    return following


class Automatic:
    """From its beginning, every optimizer step in any thread ends a step of that thread.

    At the end only the calling thread's work is finished: others may outlive the script.
    """

    def __init__(self, options: Options) -> None:
        self.place = Place(options, "script")
        self.local = threading.local()

    def __enter__(self) -> Automatic:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(self._after_step)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        stretch: Stretch | None = getattr(self.local, "stretch", None)
        if stretch is not None:
            stretch.stop(failed=kind is not None)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        stretch: Stretch | None = getattr(self.local, "stretch", None)
        if trains_on_xla(optimizer):
            return
        if stretch is None:
            if threads.active() is not None:
                return  # inside a region that the script itself opened
            module = hot_path(self.place.options)
            if module is None:
                return
            patches.install(module)
            stretch = self.local.stretch = Stretch(threads.engine(module), self.place.site(module))
            stretch.begin()
        else:
            stretch.next("optimizer step")
