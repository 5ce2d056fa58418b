"""Bounded queues that can be closed, which ends the readers."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any


class _Closable:
    def __init__(self, maxsize: int = 1024) -> None:
        self._maxsize = maxsize
        self._changed = threading.Condition()
        self._closed = False
        self._ended = False

    def max_size(self) -> int:
        """How many items may wait."""
        return self._maxsize

    def close(self) -> None:
        """Nobody reads or writes any more: waiting items are dropped, everybody who waits is let go."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close_write(self) -> None:
        """Nothing more comes: readers get what is there, and then None."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class Queue(_Closable):
    """First in, first out."""

    def __init__(self, maxsize: int = 1024) -> None:
        super().__init__(maxsize)
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> bool:
        """Adds an item, waiting for room; False if the queue was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._maxsize)
            if self._closed:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def get(self) -> Any:
        """Takes the oldest item, waiting for one; None when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._ended or self._items)
            if self._closed or not self._items:
                return None
            item = self._items.popleft()
            self._changed.notify_all()
            return item


class KeydQueue(_Closable):
    """Items are taken by their keys."""

    def __init__(self, maxsize: int = 1024) -> None:
        super().__init__(maxsize)
        self._items: dict[Any, Any] = {}

    def put(self, key: Any, item: Any) -> bool:
        """Adds an item, waiting for room; False if the queue was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._maxsize)
            if self._closed:
                return False
            self._items[key] = item
            self._changed.notify_all()
            return True

    def get(self, key: Any) -> Any:
        """Takes the item of a key, waiting for it; None when it will not come."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._ended or key in self._items)
            if self._closed or key not in self._items:
                return None
            item = self._items.pop(key)
            self._changed.notify_all()
            return item
