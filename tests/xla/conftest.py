"""The xla device with the interpreter and torch's own random numbers, so that results are eager's to the last bit."""

from collections.abc import Iterator

import pytest

from markstep.engine.options import resolve
from markstep.engine.region import Place
from markstep.xla import device


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    device.install()
    monkeypatch.setattr(device, "_place", Place(resolve({"backend": "interpreter", "rng": "torch"}), "a test"))
    yield
    device.leave()
