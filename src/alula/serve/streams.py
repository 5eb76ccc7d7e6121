"""Answers that are being written, on the front's side: pieces wait here until somebody takes them, and not too many."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from alula.core.errors import AlulaError, EngineError
from alula.generate import Piece

MOST_PIECES = 1_024
"""Of each answer of a request; a client that is so far behind is not reading."""


class TooSlow(EngineError):  # noqa: N818 - what a client is
    """The client does not take what is written for it."""


class Stream:
    """The pieces of the answers to one request, in the order they came, each with the place of its answer."""

    def __init__(
        self,
        model: int,
        numbers: Sequence[int],
        observe: Callable[[int, Piece], None],
        most_pieces: int = MOST_PIECES,
    ) -> None:
        self.model = model
        self.numbers = tuple(numbers)
        self.left = False
        self._places = {number: at for at, number in enumerate(numbers)}
        self._unended = set(numbers)
        self._observe = observe
        self._most = most_pieces * len(numbers)
        self._pieces: deque[tuple[int, Piece]] = deque()
        self._error: AlulaError | None = None
        self._came = asyncio.Event()

    def put(self, piece: Piece) -> bool:
        """Keep a piece; false when too many wait, and then no more is kept."""
        if self.left or self._error:
            return True
        if len(self._pieces) >= self._most:
            self.fail(TooSlow(f"the client left {self._most} pieces of the answer unread; it was cancelled"))
            return False
        at = self._places[piece.id]
        self._observe(at, piece)
        self._pieces.append((at, piece))
        if piece.ending or piece.error:
            self._unended.discard(piece.id)
        self._came.set()
        return True

    def close(self) -> None:
        """Take no more of what comes; whoever waits for it need not."""
        self.left = True
        self._pieces.clear()
        self._came.set()

    def fail(self, error: AlulaError) -> None:
        """End it with an error, which comes after the pieces that are here."""
        self._error = self._error or error
        self._came.set()

    async def take(self) -> list[tuple[int, Piece]]:
        """What has come, waiting for something to; nothing once every answer has ended, or it is closed."""
        while not self._pieces:
            if self._error:
                raise self._error
            if self.left or not self._unended:
                return []
            self._came.clear()
            await self._came.wait()
        taken = list(self._pieces)
        self._pieces.clear()
        return taken


class Streams:
    """The streams of one engine process by the numbers of their answers, until the process lets go of each."""

    def __init__(self) -> None:
        self._streams: dict[int, Stream] = {}

    def __bool__(self) -> bool:
        return bool(self._streams)

    def count(self, model: int) -> int:
        """Answers of a model that the process has in hand, or is about to."""
        return sum(stream.model == model for stream in self._streams.values())

    def open(self, stream: Stream) -> None:
        """Expect pieces for it."""
        self._streams.update(dict.fromkeys(stream.numbers, stream))

    def deliver(self, pieces: Iterable[Piece]) -> list[Stream]:
        """Hand pieces to their streams; gives those that cannot hold theirs and are to be cancelled."""
        full = []
        for piece in pieces:
            if stream := self._streams.get(piece.id):
                if piece.ending or piece.error:
                    del self._streams[piece.id]
                if not stream.put(piece):
                    full.append(stream)
        return full

    def forget(self, number: int) -> None:
        """An answer that the process did not take; whoever asked for it is told elsewhere."""
        self._streams.pop(number, None)

    def unended(self, stream: Stream) -> list[int]:
        """Those answers of a stream that the process has in hand still."""
        return [number for number in stream.numbers if number in self._streams]

    def fail(self, error: Callable[[], AlulaError]) -> None:
        """The process is gone, and everything with it; each stream gets an error of its own."""
        for stream in self._streams.values():
            stream.fail(error())
        self._streams.clear()
