"""Settings that every test shares; set before Markstep or transformers is imported."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Kept between sessions, like pytest's own cache, so that the native part is built once (12 s) and not at every run.
_CACHE = Path(__file__).resolve().parent.parent / ".pytest_cache" / "markstep"
os.environ["MARKSTEP_CACHE_DIR"] = str(_CACHE if os.access(_CACHE.parent.parent, os.W_OK) else tempfile.mkdtemp())
for _name in [name for name in os.environ if name.startswith("MARKSTEP") and name != "MARKSTEP_CACHE_DIR"]:
    del os.environ[_name]
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["USE_TORCH_XLA"] = "0"  # once the tests of the xla device have made torch_xla importable

import pytest  # noqa: E402
import torch  # noqa: E402

from markstep.engine import report  # noqa: E402
from markstep.engine.options import resolve  # noqa: E402
from markstep.record import native  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    """The C++ part is there: built in the background, it would leave the first tests on a fresh machine without it."""
    native.load(resolve({}).prepared_cache_dir())


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """A new report, a fixed seed and torch's default settings around every test."""
    torch.set_num_threads(1)  # sizes are tiny, and a busy machine makes threads wait for each other
    torch.manual_seed(0)
    report.reset()
    yield
    assert torch.is_grad_enabled()
    torch.set_default_dtype(torch.float32)
