from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_wire import through

from alula.core.errors import InputError, Overloaded
from alula.generate import Chosen, Piece, Request, Sampling, Stopping
from alula.serve import sequences, wire
from alula.serve.sequences import Load

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)

REQUESTS = st.builds(
    Request,
    prompt=TOKENS.filter(bool),
    source=TOKENS,
    sampling=st.builds(
        Sampling,
        temperature=st.floats(0, 2),
        top_k=st.integers(0, 100),
        top_p=st.floats(0, 1),
        repetition_penalty=st.floats(0.5, 2),
        logit_bias=st.dictionaries(st.integers(0, 1000), st.floats(-100, 100), max_size=3).map(
            lambda found: tuple(found.items())
        ),
        seed=st.none() | st.integers(-(2**63), 2**63 - 1),
        logprobs=st.none() | st.integers(0, 20),
    ),
    stopping=st.builds(
        Stopping,
        max_tokens=st.integers(3, 1000),
        min_tokens=st.integers(0, 3),
        end_tokens=TOKENS,
        stop=st.lists(st.text(min_size=1, max_size=4), max_size=4).map(tuple),
    ),
)
CHOSEN = st.builds(
    Chosen,
    token=st.integers(0, 1000),
    logprob=st.none() | FLOATS,
    top=st.lists(st.tuples(st.integers(0, 1000), FLOATS), max_size=3).map(tuple),
)
PIECES = st.builds(
    Piece,
    id=st.integers(0, 2**40),
    text=st.text(max_size=5),
    tokens=st.lists(CHOSEN, max_size=2).map(tuple),
    ending=st.sampled_from(["stop", "length", None]),
    stopped_by=st.none() | st.integers(0, 9) | st.text(max_size=3),
    error=st.text(max_size=3),
)


@given(request=REQUESTS)
def test_a_request_arrives_as_it_was_sent(request: Request) -> None:
    sent = sequences.asking(7, 1, request, 2.5, -5.0)
    got = through(sent)
    assert sequences.asked(got) == (request, 2.5, -5.0)
    assert (got.kind, got.number, got.meta["model"]) == (wire.Kind.GENERATE, 7, 1)


@given(pieces=st.lists(PIECES, max_size=4))
def test_pieces_arrive_as_they_were_sent(pieces: list[Piece]) -> None:
    load = Load(running=3, waiting=1, blocks=4, all_blocks=9, preempted=2)
    (sent,) = sequences.moved(5, pieces, load)
    got = through(sent)
    assert (got.kind, got.number) == (wire.Kind.PIECES, 5)
    assert sequences.pieces(got) == pieces
    assert sequences.load(got) == load


def test_very_many_pieces_go_in_several_messages_that_each_fit() -> None:
    top = tuple((at, -1.2345678901234567) for at in range(20))
    pieces = [
        Piece(
            id=2**50 + at,
            text="\N{GRINNING FACE}" * 50,
            tokens=(Chosen(token=150_000, logprob=-1.2345678901234567, top=top),),
            ending=None,
            stopped_by=None,
            waited_s=0.25,
        )
        for at in range(1000)
    ]
    sent = sequences.moved(0, pieces, Load())
    assert len(sent) == 8
    assert [piece for message in sent for piece in sequences.pieces(through(message))] == pieces


def test_a_message_that_would_be_refused_on_arrival_is_not_sent() -> None:
    request = Request(
        prompt=(1,), sampling=Sampling(), stopping=Stopping(max_tokens=1, stop=("x" * (wire.MAX_META + 1),))
    )
    with pytest.raises(wire.WireError, match="bytes beside its arrays; at most"):
        wire.pack(sequences.asking(1, 0, request, 1.0))


def test_a_full_line_is_told_from_a_request_that_can_never_run() -> None:
    assert type(wire.error_of(wire.failure(1, Overloaded("full")))) is Overloaded
    assert type(wire.error_of(wire.failure(1, InputError("long")))) is InputError
