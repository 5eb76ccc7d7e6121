"""Memory for activations that engines of one process share, since they run one after another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from alula.core.errors import RunError
from alula.engines.cuda import Buffer, Cuda


class Scratch:
    """As large as whoever of its lanes needs most. On the GPU the next one waits for the one before.

    It may lie elsewhere once a lane joins that needs more, so whoever takes a turn looks where it lies.
    """

    def __init__(self) -> None:
        self.buffer = Buffer(0, 0)
        self._lanes = 0
        self._done = 0
        self._stream = 0
        self._lock = threading.Lock()

    def join(self, cuda: Cuda, size: int) -> None:
        """One more lane, which needs so many bytes; without room for them all is as before."""
        with self._lock:
            if not self._lanes:
                self._done = cuda.event()
            try:
                if size > self.buffer.size:
                    self._grow(cuda, size)
            except BaseException:
                if not self._lanes:
                    cuda.destroy_event(self._done)
                raise
            self._lanes += 1

    def leave(self, cuda: Cuda) -> None:
        """One lane less, of which nothing runs; the last one takes the memory along."""
        with self._lock:
            self._lanes -= 1
            if not self._lanes:
                buffer, self.buffer, self._stream = self.buffer, Buffer(0, 0), 0
                cuda.free(buffer)
                cuda.destroy_event(self._done)

    @contextmanager
    def turn(self, cuda: Cuda, stream: int) -> Iterator[Buffer]:
        """Where the memory lies; what is queued on the stream within has it for itself."""
        with self._lock:
            if self._stream not in {0, stream}:
                cuda.wait_for(self._done, stream)
            self._stream = stream
            try:
                yield self.buffer
            finally:
                cuda.record(self._done, stream)

    def _grow(self, cuda: Cuda, size: int) -> None:
        """Free what there is first: there may not be room for both."""
        before = self.buffer
        if before.size:
            cuda.wait_until(self._done)
            cuda.free(before)
            self.buffer = Buffer(0, 0)
        try:
            self.buffer = cuda.malloc(size)
        except RunError:
            self.buffer = cuda.malloc(before.size)
            raise


@dataclass(frozen=True, slots=True)
class Place:
    """Where a lane computes: on a GPU, in memory that others may have before and after it."""

    cuda: Cuda
    scratch: Scratch
