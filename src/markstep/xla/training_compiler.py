"""SageMaker Training Compiler's settings, which arrive in SM_FRAMEWORK_PARAMS; read when torch_xla is imported."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

log = logging.getLogger("torch_xla.sagemaker.training_compiler")
_DEBUG = {"PT_XLA_DEBUG": "1", "XLA_IR_DEBUG": "1", "XLA_HLO_DEBUG": "1"}


def configure() -> None:
    """Reads the settings and says so; in debug mode the reports of a training job are written to its output folder.

    Sets environment variables only, and keeps those that are set already. Does nothing if the compiler is not enabled.
    """
    settings = _settings()
    if settings is None:
        return
    if not log.handlers and not logging.getLogger().handlers:
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO)
        log.propagate = False
    log.info("Found configuration for Training Compiler")
    if not _true(settings.get("sagemaker_training_compiler_enabled")):
        return
    log.info("Configuring SM Training Compiler...")
    _set("GPU_NUM_DEVICES", "1", quiet=True)
    os.environ["SM_TRAINING_COMPILER_CONFIGURED"] = "1"
    if _true(settings.get("sagemaker_training_compiler_debug_mode")):
        log.info("Training Compiler set to debug mode")
        folder = Path(os.environ.get("SM_OUTPUT_DATA_DIR", ".")) / "compiler"
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in _DEBUG.items():
            _set(name, value)
        _set("XLA_METRICS_FILE", str(folder / "XLA_METRICS_FILE.txt"))
        _set("PT_XLA_DEBUG_FILE", str(folder / "PT_XLA_DEBUG_FILE.txt"))


def _settings() -> dict[str, object] | None:
    text = os.environ.get("SM_FRAMEWORK_PARAMS")
    if not text:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        log.warning("SM_FRAMEWORK_PARAMS is no JSON: %r", text)
        return None
    if not isinstance(found, dict) or not any(name.startswith("sagemaker_training_compiler_") for name in found):
        return None
    return found


def _true(value: object) -> bool:
    return value is True or str(value).lower() in ("true", "1")


def _set(name: str, value: str, *, quiet: bool = False) -> None:
    if name not in os.environ:
        os.environ[name] = value
    elif not quiet and os.environ[name] != value:
        log.warning("%s is set already: keeping %s", name, os.environ[name])
