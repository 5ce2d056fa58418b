"""What a script sees of the way it was started."""

import atexit
import os
import pickle
import sys
from pathlib import Path

import outcome
import torch


class Settings:
    """Can be pickled only while `__main__` is the script."""

    lr = 0.1


def at_exit() -> None:
    last = (weight * 1).detach()  # after the end of the script
    seen["at exit"] = (type(pickle.loads(pickle.dumps(Settings()))).__module__, last)
    outcome.save(sys.argv[1], seen=seen)


names = sorted(k for k in globals() if k.startswith("__"))
first = [p for p in sys.path if "python3" not in p and ".zip" not in p]
seen = {
    "argv": sys.argv,
    "file": __file__,
    "name": __name__,
    "package": __package__,
    "spec": repr(__spec__),
    "doc": __doc__,
    "names": names,
    "folder": Path(sys.path[0]) == Path(__file__).resolve().parent,
    "path": first,
    "cwd": os.listdir(),
    "helper": Path(outcome.__file__).name,
    "main": sys.modules["__main__"].__dict__ is globals(),
}
try:
    from . import outcome as relative  # type: ignore[import-not-found]  # noqa: F401
except ImportError as error:
    seen["relative"] = str(error)
weight = torch.ones(3, requires_grad=True)
if __name__ == "__main__":
    optimizer = torch.optim.SGD([weight], lr=Settings.lr)
    for _ in range(12):
        optimizer.zero_grad()
        (weight**2).sum().backward()
        optimizer.step()
    atexit.register(at_exit)
    sys.exit(5)
