"""Temporary folders next to a checkpoint: made, locked while their process lives, and cleaned up after one that died."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import shutil
import time
import uuid
from pathlib import Path

from markstep.checkpoint.files import sync_folder

_SAVING = ".saving-"
_DELETING = ".deleting-"
_DAY = 86_400


class Unfinished:
    """A folder that is being written. It is locked, and the lock ends with the process, however that ends.

    Attributes:
        path: where to write.
    """

    def __init__(self, final: Path) -> None:
        self.path = final.parent / f"{_SAVING}{final.name}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.path.mkdir()
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        _lock(self._descriptor)

    def finish(self, final: Path) -> None:
        """Gives the folder its final name, at once and for good.

        Raises:
            FileExistsError: something else has that name.
        """
        sync_folder(self.path)
        if final.exists():  # os.rename would replace an empty folder
            raise FileExistsError(errno.EEXIST, "something else has the name of the checkpoint", str(final))
        os.rename(self.path, final)
        sync_folder(final.parent)
        self.close()

    def discard(self) -> None:
        """Removes what has been written."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.close()

    def close(self) -> None:
        """Ends the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _lock(descriptor: int) -> bool | None:
    """Whether nobody else has the lock; None where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def clean(parent: Path, name: str) -> None:
    """Removes folders that processes that died have left in `parent`, of checkpoints whose names begin with `name`.

    Where the file system has no locks, those younger than a day stay.
    """
    for path in parent.glob(f"{_DELETING}{glob.escape(name)}*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in parent.glob(f"{_SAVING}{glob.escape(name)}*"):
        if _abandoned(path):
            shutil.rmtree(path, ignore_errors=True)


def _abandoned(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # somebody else has removed it
        return False
    try:
        free = _lock(descriptor)
        return time.time() - path.stat().st_mtime > _DAY if free is None else free
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Removes a checkpoint; a crash in the middle leaves no half of it under its name."""
    aside = path.parent / f"{_DELETING}{path.name}-{uuid.uuid4().hex[:8]}"
    os.rename(path, aside)
    shutil.rmtree(aside, ignore_errors=True)
