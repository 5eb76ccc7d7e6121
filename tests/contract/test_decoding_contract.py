"""What every session that keeps a cache promises: its logits are those of the sequence alone, whole and without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from writers import KINDS, Floats, Writer, writer

from alula.core.decoding import Decoding, Room, Work
from alula.core.errors import InputError, RunError

ROOM = Room(sequences=12, blocks=48, block_tokens=4)
LIMIT = 1e-4
"""Of logits of the size of 1 to 10, in fp32: what another order of sums may change."""


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Writer:
    folder: Path = tmp_path_factory.mktemp("writer")
    return writer(request.param, folder)


@pytest.fixture
def session(model: Writer) -> Iterator[Decoding]:
    opened = model.open(ROOM)
    yield opened
    opened.close()


def start(session: Decoding, model: Writer, *sequences: int) -> None:
    for sequence in sequences:
        session.start(sequence, model.given(sequence))


def work(sequence: int, tokens: tuple[int, ...], *, answers: bool = True) -> Work:
    return Work(sequence=sequence, tokens=tokens, answers=answers)


def near(given: Floats, expected: Floats) -> bool:
    return given.shape == expected.shape and bool(np.abs(given - expected).max() < LIMIT)


def test_a_prompt_gives_what_the_plain_graph_gives(model: Writer, session: Decoding) -> None:
    start(session, model, 0)
    tokens = model.tokens(9, 0)
    [logits] = session.step([work(0, tokens)])
    assert logits.shape == (session.vocabulary,) == (model.vocabulary,)
    assert logits.dtype == np.float32
    expected = model.whole(tokens, model.given(0))
    assert near(logits, expected[-1])
    assert not near(logits, expected[-2])  # the comparison can fail


@pytest.mark.parametrize("cuts", [[1] * 11, [5, 4, 2], [1, 9, 1], [4, 4, 1, 1, 1]])
def test_a_sequence_in_pieces_gives_what_it_gives_whole(
    cuts: list[int], model: Writer, session: Decoding
) -> None:
    start(session, model, 3)
    tokens, at = model.tokens(11, 3), 0
    expected = model.whole(tokens, model.given(3))
    for size in cuts:
        [logits] = session.step([work(3, tokens[at : at + size])])
        at += size
        assert near(logits, expected[at - 1]), at
    assert at == len(tokens)


def test_ragged_sequences_side_by_side_give_what_each_gives_alone(model: Writer, session: Decoding) -> None:
    """unslothai/unsloth#4078: a short prompt beside a long one has its own positions."""
    lengths = {0: 14, 1: 1, 2: 6, 3: 6}
    start(session, model, *lengths)
    tokens = {each: model.tokens(length + 4, each) for each, length in lengths.items()}
    expected = {each: model.whole(tokens[each], model.given(each)) for each in lengths}
    given = session.step([work(each, tokens[each][:length]) for each, length in lengths.items()])
    for more in range(5):
        for logits, (each, length) in zip(given, lengths.items(), strict=True):
            assert near(logits, expected[each][length + more - 1]), (each, more)
        if more < 4:
            given = session.step(
                [work(each, (tokens[each][length + more],)) for each, length in lengths.items()]
            )


def test_who_joins_late_or_leaves_changes_nobody(model: Writer, session: Decoding) -> None:
    """One joins at every step, in chunks, beside those that go on by one token; one leaves after five of its own."""
    tokens = {each: model.tokens(12, each) for each in range(6)}
    expected = {each: model.whole(tokens[each], model.given(each)) for each in tokens}
    at: dict[int, int] = {}
    for step in range(11):
        if step in tokens:
            start(session, model, step)
            at[step] = 0
        for gone in [each for each, place in at.items() if place >= 11]:
            session.release(gone)
            del at[gone]
        sizes = {each: 3 if place < 6 else 1 for each, place in at.items()}
        given = session.step(
            [work(each, tokens[each][place : place + sizes[each]]) for each, place in at.items()]
        )
        for each, logits in zip(list(at), given, strict=True):
            at[each] += sizes[each]
            assert near(logits, expected[each][at[each] - 1]), (step, each)


def test_only_who_answers_is_in_the_logits_in_the_order_of_the_work(model: Writer, session: Decoding) -> None:
    start(session, model, 5, 1, 4)
    tokens = {each: model.tokens(4, each) for each in (5, 1, 4)}
    given = session.step([work(each, tokens[each], answers=each != 1) for each in (5, 1, 4)])
    assert len(given) == 2
    for logits, each in zip(given, (5, 4), strict=True):
        assert near(logits, model.whole(tokens[each], model.given(each))[-1])
    assert session.step([work(1, (7,), answers=False)]).shape == (0, model.vocabulary)
    # In another order than they lie in.
    given = session.step([work(each, (7,)) for each in (4, 5)])
    for logits, each in zip(given, (4, 5), strict=True):
        assert near(logits, model.whole((*tokens[each], 7), model.given(each))[-1])


def test_more_sequences_than_the_engine_takes_rows(model: Writer, session: Decoding) -> None:
    """It was built for 8."""
    start(session, model, *range(12))
    tokens = {each: model.tokens(3, each) for each in range(12)}
    for at in (0, 2):
        ran = slice(at, at + 2 if at == 0 else at + 1)
        given = session.step([work(each, tokens[each][ran]) for each in range(12)])
        for each, logits in enumerate(given):
            expected = model.whole(tokens[each], model.given(each))
            assert near(logits, expected[1 if at == 0 else 2]), each


def test_a_released_sequence_is_forgotten(model: Writer, session: Decoding) -> None:
    start(session, model, 0, 1)
    session.step([work(0, model.tokens(5, 0)), work(1, model.tokens(5, 1))])
    session.release(0)
    session.release(0)
    session.release(77)
    with pytest.raises(RunError, match="sequence 0 was not started"):
        session.step([work(0, (3,))])
    start(session, model, 0)
    tokens = model.tokens(4, 8)
    given = session.step([work(0, tokens)])
    assert near(given[0], model.whole(tokens, model.given(0))[-1])
    given = session.step([work(1, (3,))])
    assert near(given[0], model.whole((*model.tokens(5, 1), 3), model.given(1))[-1])


def test_what_has_no_room_is_refused(model: Writer) -> None:
    session = model.open(Room(sequences=3, blocks=4, block_tokens=4))
    assert session.room.tokens == 16
    start(session, model, 0, 1)
    with pytest.raises(RunError, match="sequence 1 was started already"):
        start(session, model, 1)
    start(session, model, 2)
    with pytest.raises(RunError, match="sequence 9 is one too many; there is room for 3"):
        start(session, model, 9)
    session.step([work(0, model.tokens(8, 0)), work(1, model.tokens(5, 1))])
    with pytest.raises(RunError, match="the step takes 5 blocks of the cache; there is room for 4"):
        session.step([work(2, (3,))])
    session.release(2)
    session.release(1)
    start(session, model, 1)
    given = session.step([work(0, (3,)), work(1, model.tokens(4, 1))])
    assert near(given[1], model.whole(model.tokens(4, 1), model.given(1))[-1])
    session.close()


def test_what_is_longer_than_the_engine_was_built_for_is_refused(model: Writer, session: Decoding) -> None:
    start(session, model, 0, 1)
    tokens = model.tokens(48, 0)
    [logits] = session.step([work(0, tokens)])
    assert near(logits, model.whole(tokens, model.given(0))[-1])
    with pytest.raises(RunError, match="sequence 0 would hold 49 tokens; the decoder takes 48 at most"):
        session.step([work(0, (3,))])


def test_what_an_encoder_reads_is_given_where_there_is_one(model: Writer, session: Decoding) -> None:
    wrong = {} if model.reads else {"input_ids": np.array([[3]])}
    with pytest.raises(InputError, match="a sequence is given"):
        session.start(0, wrong)
    start(session, model, 0)
    if model.reads:
        with pytest.raises(InputError, match=r"axis 'source' is 25; built for 1\.\.24"):
            session.start(1, {"input_ids": np.ones((1, 25), np.int64)})
        with pytest.raises(InputError, match=r"input_ids is int64 \(2, 3\), expected int64 \[1, source\]"):
            session.start(1, {"input_ids": np.ones((2, 3), np.int64)})


def test_a_closed_session_refuses(model: Writer) -> None:
    session = model.open(ROOM)
    start(session, model, 0)
    session.close()
    session.close()
    with pytest.raises(RunError, match="session is closed"):
        session.step([work(0, (3,))])
    with pytest.raises(RunError, match="session is closed"):
        session.start(1, model.given(1))
    session.release(0)
