"""Builds (once per machine, torch and source) and loads the C++ hot path."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from pathlib import Path
from types import ModuleType

import torch

from markstep.record.program import New, Ref, Same, Scalar

_SOURCE = Path(__file__).with_name("native_code")
_lock = threading.Lock()
_module: ModuleType | None = None


class NativeUnavailable(RuntimeError):
    """The C++ part cannot be built or loaded here; the message says why and what to do."""


def load(cache_dir: Path) -> ModuleType:
    """The compiled module; builds it into `cache_dir` when it is not there yet (about 12 s).

    Raises:
        NativeUnavailable: no C++ compiler, or the build failed.
    """
    global _module
    with _lock:
        if _module is None:
            _module = _import(_build(cache_dir))
            _module.setup(Ref, Scalar, New, Same)
        return _module


def loaded() -> ModuleType | None:
    """The compiled module, if this process has loaded it."""
    return _module


def is_built(cache_dir: Path) -> bool:
    """Is nothing left to compile?"""
    return _module is not None or _target(cache_dir).exists()


def _target(cache_dir: Path) -> Path:
    sources = [path.read_text() for path in sorted((*_SOURCE.glob("*.cpp"), *_SOURCE.glob("*.h")))]
    identity = "|".join([*sources, torch.__version__, sys.version, sysconfig.get_platform()])
    return cache_dir / f"native-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.so"


def _build(cache_dir: Path) -> Path:
    target = _target(cache_dir)
    if target.exists() and target.stat().st_uid == os.getuid():
        return target
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise NativeUnavailable("no C++ compiler was found: install g++ (Debian: apt-get install g++) or set CXX")
    root = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory(dir=cache_dir) as work:
        out = Path(work) / "native.so"
        command = [
            compiler, "-O2", "-fPIC", "-shared", "-std=c++20", f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include",
            f"-I{sysconfig.get_paths()['include']}", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            str(_SOURCE / "module.cpp"), "-o", str(out), f"-L{root}/lib", "-lc10", "-ltorch_cpu", "-ltorch_python",
        ]  # fmt: skip
        if nice := shutil.which("nice"):
            command = [nice, "-n", "19", *command]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            raise NativeUnavailable(f"{command[0]} does not start ({error}): install g++, or set CXX to a compiler") from error
        if done.returncode:
            raise NativeUnavailable(
                f"{compiler} could not build Markstep's C++ part. Install g++ 10 or newer, or set CXX to a compiler that "
                f"knows C++20. It said: {done.stderr.strip()[-2000:]}"
            )
        os.chmod(out, 0o700)
        os.replace(out, target)
    return target


def _import(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("_native", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        raise NativeUnavailable(f"Markstep's C++ part does not load ({error}): delete {path}") from error
    return module
