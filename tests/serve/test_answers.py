"""What comes of the pieces of an answer."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from alula.core.errors import EngineError
from alula.generate import Piece
from alula.serve.errors import Refused
from alula.serve.streams import Stream
from alula.serve.writer import Answers


def answers(*pieces: Piece, until: float) -> tuple[Answers, list[Stream]]:
    closed: list[Stream] = []
    stream = Stream(0, (1, 2), lambda at, piece: None)
    for piece in pieces:
        stream.put(piece)
    return Answers(stream, until, 2.0, closed.append), closed


@pytest.mark.parametrize("late", [False, True])
def test_an_error_comes_after_what_was_written_before_it(late: bool) -> None:
    async def run() -> None:
        given, closed = answers(
            Piece(id=1, text="a"),
            Piece(id=2, text="b"),
            Piece(id=2, error="NaN"),
            Piece(id=1, text="c"),
            until=monotonic() + (-1 if late else 60),
        )
        assert [(at, piece.text) for at, piece in await given.take()] == [(0, "a"), (1, "b")]
        said = "was not finished within 2 s" if late else "^NaN$"
        for _ in range(2):
            with pytest.raises(Refused if late else EngineError, match=said):
                await given.take()
        assert not closed
        given.close()
        assert len(closed) == 1

    asyncio.run(asyncio.wait_for(run(), 5))
