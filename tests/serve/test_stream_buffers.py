"""What waits in the front for somebody who takes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from alula.core.errors import EngineError
from alula.generate import Chosen, Piece
from alula.serve.streams import Stream, Streams, TooSlow


def piece(id: int, text: str = "", ending: Any = None, error: str = "") -> Piece:
    return Piece(id=id, text=text, tokens=(Chosen(token=1),), ending=ending, stopped_by=None, error=error)


def stream(numbers: tuple[int, ...] = (10, 11), most: int = 4, model: int = 0) -> Stream:
    return Stream(model, numbers, lambda at, piece: None, most)


def within(make: Callable[[], Any]) -> Any:
    async def run() -> Any:
        return await asyncio.wait_for(make(), 5)

    return asyncio.run(run())


def test_pieces_come_in_order_with_the_place_of_their_answer_until_all_have_ended() -> None:
    async def taken() -> list[tuple[int, str]]:
        given, found = stream(), []
        for one in (piece(11, "a"), piece(10, "b"), piece(10, "c", "stop"), piece(11, "d", "length")):
            given.put(one)
        while some := await given.take():
            found += [(at, one.text) for at, one in some]
        return found

    assert within(taken) == [(1, "a"), (0, "b"), (0, "c"), (1, "d")]


def test_whoever_takes_waits_for_what_comes() -> None:
    async def taken() -> list[tuple[int, Piece]]:
        given = stream()
        taking = asyncio.ensure_future(given.take())
        await asyncio.sleep(0)
        assert not taking.done()
        given.put(piece(10, "late"))
        return await taking

    assert [one.text for _, one in within(taken)] == ["late"]


def test_whoever_waits_at_a_stream_that_is_closed_need_not() -> None:
    async def taken() -> list[tuple[int, Piece]]:
        given = stream()
        taking = asyncio.ensure_future(given.take())
        await asyncio.sleep(0)
        given.close()
        given.put(piece(10, "late"))
        return await taking

    assert within(taken) == []


def test_a_stream_that_nobody_reads_is_bounded_and_fails_after_what_it_holds() -> None:
    async def overflow() -> tuple[int, int]:
        given = stream((10, 11), most=4)
        kept = sum(given.put(piece(10, "x")) for _ in range(8))
        refused = [given.put(piece(10, "x")) for _ in range(1000)]
        assert not refused[0]
        held = len(await given.take())
        with pytest.raises(TooSlow, match="left 8 pieces of the answer unread"):
            await given.take()
        return kept, held

    assert within(overflow) == (8, 8)


def test_streams_that_are_full_are_named_once_so_that_they_are_cancelled() -> None:
    streams, slow, other = Streams(), stream((1,), most=2), stream((2,), most=2)
    streams.open(slow)
    streams.open(other)
    assert streams.deliver([piece(1), piece(2), piece(1)]) == []
    assert streams.deliver([piece(1), piece(2)]) == [slow]
    assert streams.deliver([piece(1)]) == []
    assert streams.unended(slow) == [1]


def test_an_answer_counts_until_the_engine_has_let_go_of_it() -> None:
    streams, given = Streams(), stream((1, 2), model=3)
    streams.open(given)
    given.close()
    assert (streams.count(3), streams.count(0), bool(streams)) == (2, 0, True)
    streams.deliver([piece(1, error="cancelled"), piece(9)])
    assert (streams.count(3), streams.unended(given)) == (1, [2])
    streams.deliver([piece(2, ending="stop")])
    assert not streams


def test_a_dead_process_fails_every_stream_with_an_error_of_its_own() -> None:
    async def errors() -> list[Exception]:
        streams, all_of_them = Streams(), [stream((1,)), stream((2,))]
        for each in all_of_them:
            streams.open(each)
        streams.fail(lambda: EngineError("gone"))
        found = await asyncio.gather(*(each.take() for each in all_of_them), return_exceptions=True)
        assert not streams
        return [error for error in found if isinstance(error, Exception)]

    first, second = within(errors)
    assert str(first) == str(second) == "gone"
    assert first is not second
