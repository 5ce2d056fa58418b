"""Settings that every test shares; set before Markstep or transformers is imported."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Kept between sessions, like pytest's own cache, so that the native part is built once (12 s) and not at every run.
_CACHE = Path(__file__).resolve().parent.parent / ".pytest_cache" / "markstep"
os.environ["MARKSTEP_CACHE_DIR"] = str(_CACHE if os.access(_CACHE.parent.parent, os.W_OK) else tempfile.mkdtemp())
for _name in ("MARKSTEP", "MARKSTEP_BACKEND", "MARKSTEP_RNG", "MARKSTEP_BACKGROUND", "MARKSTEP_REPLAY", "MARKSTEP_ARENA"):
    os.environ.pop(_name, None)
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest  # noqa: E402
import torch  # noqa: E402

from markstep.engine import report  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """A new report, a fixed seed and torch's default settings around every test."""
    torch.set_num_threads(1)  # sizes are tiny, and a busy machine makes threads wait for each other
    torch.manual_seed(0)
    report.reset()
    yield
    assert torch.is_grad_enabled()
    torch.set_default_dtype(torch.float32)
