"""The few settings, each also an environment variable."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from markstep.engine.report import current

_BACKENDS = ("inductor", "interpreter", "eager")
_RNGS = ("hash", "torch")
_SWITCHES = ("background", "replay", "arena")
PASSES = ("attention", "channels_last", "loss_head", "narrow_products", "product_library", "repeated_layers")
_preparing = threading.Lock()  # so that threads do not all find and report the same unusable directory


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "markstep"


@dataclass(frozen=True)
class Options:
    """How Markstep runs a training step.

    Attributes:
        backend: "inductor" compiles; "interpreter" records, predicts and replays the recorded operators one by one (the
            reference, no compiler needed); "eager" only records and reports.
        rng: "hash" computes random masks inside the compiled program from a per-step seed (same distribution, other
            numbers than eager's); "torch" draws exactly eager's numbers.
        background: compile in a child process while training goes on eagerly; False waits for the compiler.
        cache_dir: where compiled programs are kept for the next run; only its owner can read it.
        replay: skip the Python of the step once it is compiled (side effects do not repeat).
        arena: keep freed memory of large CPU tensors for the next step instead of returning it to the system; holds for the
            whole process once a step has run with it.
        passes: which optimisations may change how numbers are rounded: "all", "none", or names with commas between them, a
            minus in front of those that are not wanted ("attention", "all,-loss_head").

    Each is also an environment variable: MARKSTEP_BACKEND, MARKSTEP_RNG, MARKSTEP_BACKGROUND (0 or 1),
    MARKSTEP_CACHE_DIR, MARKSTEP_REPLAY (0 or 1), MARKSTEP_ARENA (0 or 1), MARKSTEP_PASSES. Arguments win over the environment.
    """

    backend: str = "inductor"
    rng: str = "hash"
    background: bool = True
    cache_dir: Path = Path()
    replay: bool = False
    arena: bool = True
    passes: str = "all"

    def __post_init__(self) -> None:
        _choice("backend", self.backend, _BACKENDS)
        _choice("rng", self.rng, _RNGS)
        _chosen_passes(self.passes)
        object.__setattr__(self, "cache_dir", Path(self.cache_dir) if self.cache_dir != Path() else _default_cache())

    @property
    def enabled_passes(self) -> frozenset[str]:
        """The names that `passes` stands for."""
        return _chosen_passes(self.passes)

    def prepared_cache_dir(self) -> Path:
        """The cache directory, created for its owner only; a private temporary one (with a warning) if that fails."""
        with _preparing:
            return _prepare(self.cache_dir)


@cache
def _prepare(path: Path) -> Path:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to another user")
        if path.stat().st_mode & 0o077:
            path.chmod(0o700)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        text = f"the cache directory cannot be used ({error}): compiled programs are not kept; set MARKSTEP_CACHE_DIR"
        current().warnings.append(text)
        logging.getLogger("markstep").warning("%s", text)
        return Path(tempfile.mkdtemp(prefix="markstep-"))


def resolve(given: dict[str, Any]) -> Options:
    """Options from keyword arguments, then the environment, then the defaults.

    Raises:
        TypeError: an unknown option; the message lists the valid ones.
        ValueError: a value that the option does not take.
    """
    valid = [f.name for f in fields(Options)]
    if unknown := sorted(set(given) - set(valid)):
        raise TypeError(f"unknown option {', '.join(map(repr, unknown))}: the options are {', '.join(valid)}")
    found: dict[str, Any] = {}
    for name in valid:
        text = os.environ.get(f"MARKSTEP_{name.upper()}")
        if text:
            found[name] = _switch(name, text) if name in _SWITCHES else text
    return replace(Options(), **{**found, **given})


def _chosen_passes(text: str) -> frozenset[str]:
    chosen: set[str] = set()
    for word in text.replace(" ", "").split(","):
        names = {"all": set(PASSES), "none": set[str]()}.get(word, {word.removeprefix("-")})
        if not names.issubset(PASSES):
            raise ValueError(
                f"passes={text!r}: {word!r} is not known: use all, none, or {', '.join(PASSES)} (with a minus to leave it out)"
            )
        chosen = chosen - names if word.startswith("-") else chosen | names
    return frozenset(chosen)


def enabled() -> bool:
    """False when MARKSTEP=0 (or off, false, no) switches everything off."""
    return os.environ.get("MARKSTEP", "1").lower() not in ("0", "off", "false", "no")


def _switch(name: str, text: str) -> bool:
    if text.lower() in ("1", "true", "on", "yes"):
        return True
    if text.lower() in ("0", "false", "off", "no"):
        return False
    raise ValueError(f"MARKSTEP_{name.upper()}={text!r} is not a switch: use 0 or 1")


def _choice(name: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise ValueError(f"{name}={value!r} is not known: use one of {', '.join(map(repr, valid))}")
