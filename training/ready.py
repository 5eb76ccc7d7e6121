"""Batches as they come from the workers; where none is ready, one of the last ones again, so that nobody waits.

A batch that comes again is worn otherwise (`wear.py`): what is written, and where, is the same.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from queue import Empty, Full, Queue
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")

_PATIENCE_S = 0.02
_HELD, _KEPT = 4, 16
"""Batches that wait for their turn, and those of the past that may come again."""


class Ready(Iterator[T]):
    """Batches without much waiting, each of them at most `times` times; a thread takes them from the workers."""

    def __init__(self, batches: Iterator[T], *, times: int) -> None:
        self._batches, self._times = batches, times
        self._queue: Queue[T | BaseException] = Queue(_HELD)
        self._past: deque[tuple[T, int]] = deque(maxlen=_KEPT)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._take, name="batches", daemon=True)
        self.fresh = self.again = 0

    def __enter__(self) -> Ready[T]:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def __next__(self) -> T:
        """The next new batch, or after 20 ms without one the one that was learned from the longest ago."""
        try:
            found = self._queue.get(timeout=_PATIENCE_S if self._past else None)
        except Empty:
            batch, times = self._past.popleft()
            self._keep(batch, times + 1)
            self.again += 1
            return batch
        if isinstance(found, BaseException):
            raise found
        self._keep(found, 1)
        self.fresh += 1
        return found

    def _keep(self, batch: T, times: int) -> None:
        if times < self._times:
            self._past.append((batch, times))

    def _take(self) -> None:
        """Until all is over; what a worker fails of is raised where its batch was wanted."""
        try:
            while not self._over.is_set():
                self._put(next(self._batches))
        except BaseException as failed:  # the end of the batches, too
            self._put(failed)

    def _put(self, found: T | BaseException) -> None:
        while not self._over.is_set() and not self._placed(found):
            pass

    def _placed(self, found: T | BaseException) -> bool:
        try:
            self._queue.put(found, timeout=0.1)
        except Full:
            return False
        return True
