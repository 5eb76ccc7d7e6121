"""The loop on models that would show it: an answer is the one that its request gets alone, in any company."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np
import pytest
import tiny_writers
from hypothesis import given
from hypothesis import strategies as st
from remembering import BROKEN, END, UNREADABLE, VOCABULARY, Remembering, logits

from alula.core.decoding import Decoding, Room
from alula.core.errors import DeviceLostError, InputError, Overloaded, RunError
from alula.engines.dense import Dense
from alula.generate import Chosen, Generator, Limits, Piece, Request, Sampling, Stopping

AMPLE = Limits(sequences=8, step_tokens=64, chunk_tokens=64, block_tokens=4, blocks=64)
TIGHT = Limits(sequences=4, step_tokens=5, chunk_tokens=2, block_tokens=1, blocks=22)


def decode(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token % 26) for token in tokens)


def room(limits: Limits) -> Room:
    return Room(sequences=limits.sequences, blocks=limits.blocks, block_tokens=limits.block_tokens)


def new(
    limits: Limits = AMPLE, *, fails: Sequence[int] = (), error: type[RunError] = RunError
) -> tuple[Generator, Remembering]:
    session = Remembering(room(limits), fails=fails, error=error)
    return Generator(session, limits, decode), session


def greedy(*prompt: int, most: int = 6, ends: tuple[int, ...] = (), stop: tuple[str, ...] = ()) -> Request:
    return Request(
        prompt=prompt,
        sampling=Sampling(temperature=0),
        stopping=Stopping(max_tokens=most, end_tokens=ends, stop=stop),
    )


@dataclass
class Told:
    """What was heard of one request."""

    text: str = ""
    tokens: list[Chosen] = field(default_factory=list)
    ends: list[tuple[str | None, int | str | None, str]] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        assert not self.ends, "something came behind the end"
        self.text += piece.text
        self.tokens += piece.tokens
        if piece.ending or piece.error:
            self.ends.append((piece.ending, piece.stopped_by, piece.error))


def finish(generator: Generator, told: dict[int, Told] | None = None, now: float = 0.0) -> dict[int, Told]:
    told = {} if told is None else told
    while generator.busy:
        for piece in generator.step(now):
            told.setdefault(piece.id, Told()).add(piece)
    return told


def alone(request: Request, limits: Limits = AMPLE) -> Told:
    generator, session = new(limits)
    generator.add(1, request)
    told = finish(generator)[1]
    assert not session.held
    return told


@dataclass(frozen=True)
class Visitor:
    """A request, how many steps after the one before it comes, and how many later it is cancelled."""

    request: Request
    after: int
    leaves: int | None


requests = st.builds(
    lambda prompt, seed, temperature, penalty, most, least, stop, source, logprobs: Request(
        prompt=tuple(prompt),
        source=tuple(source),
        sampling=Sampling(
            seed=seed,
            temperature=temperature,
            repetition_penalty=penalty,
            presence_penalty=0.3,
            top_p=0.95,
            logprobs=logprobs,
        ),
        stopping=Stopping(
            max_tokens=most, min_tokens=min(least, most), end_tokens=(END, 1), stop=tuple(stop)
        ),
    ),
    prompt=st.lists(st.integers(1, BROKEN), min_size=1, max_size=8),
    seed=st.integers(0, 9),
    temperature=st.sampled_from([0.0, 0.8, 1.5]),
    penalty=st.sampled_from([1.0, 1.2]),
    most=st.integers(1, 14),
    least=st.integers(0, 4),
    stop=st.lists(st.text(alphabet="abcdef", min_size=1, max_size=2), max_size=2),
    source=st.lists(st.integers(2, UNREADABLE), max_size=2),
    logprobs=st.sampled_from([None, 0, 2]),
)
visitors = st.builds(
    Visitor, request=requests, after=st.integers(0, 4), leaves=st.one_of(st.none(), st.integers(0, 12))
)
limits = st.builds(
    lambda sequences, spare, chunk, block, blocks: Limits(
        sequences=sequences,
        step_tokens=sequences + spare,
        chunk_tokens=chunk,
        block_tokens=block,
        blocks=-(-blocks // block),
    ),
    sequences=st.integers(1, 6),
    spare=st.integers(0, 8),
    chunk=st.integers(1, 8),
    block=st.integers(1, 4),
    blocks=st.integers(21, 60),
)


@given(visitors=st.lists(visitors, max_size=8), limits=limits)
def test_an_answer_is_the_one_that_its_request_gets_alone(visitors: list[Visitor], limits: Limits) -> None:
    generator, session = new(limits)
    told: dict[int, Told] = {}
    coming, leaving, at, step = list(enumerate(visitors)), dict[int, int](), 0, 0
    while coming or generator.busy:
        while coming and step >= at + coming[0][1].after:
            id, visitor = coming.pop(0)
            at = step
            generator.add(id, visitor.request)
            told[id] = Told()
            if visitor.leaves is not None:
                leaving[id] = step + visitor.leaves
        for id in [id for id, when in leaving.items() if when == step]:
            generator.cancel(id)
        for piece in generator.step(float(step)):
            assert piece.tokens or piece.ending or piece.error
            assert leaving.get(piece.id, inf) > step, "a cancelled request was answered"
            told[piece.id].add(piece)
        step += 1
        assert step < 2_000
    assert not session.held
    for id, visitor in enumerate(visitors):
        expected = alone(visitor.request)
        if told[id].ends:
            assert told[id] == expected
        else:
            assert visitor.leaves is not None
            assert told[id].tokens == expected.tokens[: len(told[id].tokens)]
            assert expected.text.startswith(told[id].text)


@given(asked=st.lists(requests, min_size=1, max_size=5), limits=limits, reads=st.booleans())
def test_so_it_is_with_caches_that_are_arrays(asked: list[Request], limits: Limits, reads: bool) -> None:
    """A fault of the cache shows: attention over keys, values, masks and positions decides every token."""

    def answers(requests: list[Request], limits: Limits) -> dict[int, Told]:
        generator = Generator(Dense(tiny_writers.parts(reads=reads), room(limits)), limits, decode)
        told: dict[int, Told] = {}
        for id, request in enumerate(requests):
            generator.add(id, request)
            for piece in generator.step(0):
                told.setdefault(piece.id, Told()).add(piece)
        return finish(generator, told)

    known = tiny_writers.VOCABULARY - 1
    asked = [
        replace(
            each,
            prompt=tuple(1 + token % (known - 1) for token in each.prompt),
            source=tuple(1 + token % (known - 1) for token in (*each.source, 5)) if reads else (),
            sampling=replace(each.sampling, logprobs=None),
        )
        for each in asked
    ]
    together = answers(asked, limits)
    for id, request in enumerate(asked):
        assert together[id] == answers([request], AMPLE)[0]


def test_greedy_takes_the_best_token_each_time() -> None:
    told = alone(greedy(5, 6, most=4))
    history = [5, 6]
    for chosen in told.tokens:
        assert chosen.token == int(np.argmax(logits(history)))
        history.append(chosen.token)
    assert told.text == decode(history[2:])
    assert told.ends == [("length", None, "")]


def test_what_was_answered_counts_for_penalties() -> None:
    request = replace(greedy(5, 6, most=14), sampling=Sampling(temperature=0, frequency_penalty=2))
    history = [5, 6]
    for chosen in alone(request).tokens:
        counts = np.bincount(history[2:], minlength=VOCABULARY)
        assert chosen.token == int(np.argmax(logits(history) - 2 * counts))
        history.append(chosen.token)
    assert history[2:] != [chosen.token for chosen in alone(greedy(5, 6, most=14)).tokens]


def test_an_answer_ends_at_any_of_its_end_tokens_or_at_a_stop_string() -> None:
    free = alone(greedy(5, 6, most=8))
    tokens = [chosen.token for chosen in free.tokens]
    ended = alone(greedy(5, 6, most=8, ends=(VOCABULARY + 5, tokens[3])))
    assert ended.ends == [("stop", tokens[3], "")]
    assert len(ended.tokens) == tokens.index(tokens[3]) + 1
    stop = free.text[2:4]
    stopped = alone(greedy(5, 6, most=8, stop=(stop,)))
    assert stopped.ends == [("stop", stop, "")]
    assert stopped.text == free.text[: free.text.index(stop)]


def test_one_token_is_an_answer() -> None:
    """It comes with the prompt, and nothing is run behind it."""
    generator, session = new()
    generator.add(3, greedy(5, 6, most=1))
    [piece] = generator.step(0)
    assert (piece.ending, len(piece.tokens), len(piece.text)) == ("length", 1, 1)
    assert [each.tokens for step in session.steps for each in step] == [(5, 6)]
    assert not generator.busy
    assert generator.step(0) == []


def test_prompts_are_read_in_chunks_beside_answers() -> None:
    limits = Limits(sequences=4, step_tokens=6, chunk_tokens=4, block_tokens=4, blocks=32)
    generator, session = new(limits)
    generator.add(1, greedy(5, most=9))
    generator.step(0)
    generator.add(2, greedy(*range(2, 12), most=2))
    assert [[piece.id for piece in generator.step(0)] for _ in range(3)] == [[1], [1], [1, 2]]
    lengths = [[(each.sequence, len(each.tokens)) for each in step] for step in session.steps[1:4]]
    assert lengths == [[(1, 1), (2, 4)], [(1, 1), (2, 4)], [(1, 1), (2, 2)]]


def test_what_is_preempted_is_read_again_and_nothing_is_said_twice() -> None:
    asked = [greedy(first, 5, 6, most=14) for first in (2, 3, 4, 7)]
    generator, session = new(TIGHT)
    for id, request in enumerate(asked):
        generator.add(id, request)
    told = finish(generator)
    assert generator.preempted
    assert {id: told[id] for id in sorted(told)} == {id: alone(request) for id, request in enumerate(asked)}
    run = sum(len(each.tokens) for step in session.steps for each in step)
    assert run > sum(3 + 13 for _ in asked)  # more than once each


@pytest.mark.parametrize("place", [0, 1, 2])
def test_logits_of_nan_are_the_error_of_one_request_alone(place: int) -> None:
    asked = {7: greedy(2, most=9), 8: greedy(3, most=9)}
    order = [7, 8]
    order.insert(place, 9)
    generator, session = new()
    for id in order:
        generator.add(id, asked.get(id, greedy(BROKEN, most=9)))
    told = finish(generator)
    [(ending, _, error)] = told[9].ends
    assert ending is None
    assert error == f"the model answered NaN in {VOCABULARY} of {VOCABULARY} logits; no token can be chosen"
    assert len(told[9].tokens) == 2
    for id, request in asked.items():
        assert told[id] == alone(request)
    assert not session.held


def test_a_source_that_cannot_be_read_is_the_error_of_one_request_alone() -> None:
    generator, session = new()
    generator.add(1, greedy(2, most=3))
    generator.add(2, greedy(2, most=3), given={"input_ids": np.array([[UNREADABLE]])})
    told = finish(generator)
    assert told[2].ends == [(None, None, "the source cannot be read")]
    assert told[1] == alone(greedy(2, most=3))
    assert not session.held


def test_an_encoders_source_is_what_a_sequence_is_started_with() -> None:
    request = greedy(2, most=3)
    sourced = alone(replace(request, source=(7, 8)))
    assert sourced.tokens[0].token == int(np.argmax(logits([2], [7, 8])))
    assert sourced != alone(request)


def test_an_error_of_the_engine_ends_those_of_the_step_and_the_next_ones_are_answered() -> None:
    generator, session = new(replace(AMPLE, sequences=2), fails=(2,))
    for id in range(3):
        generator.add(id, greedy(id + 2, most=5))
    told = finish(generator)
    assert told[0].ends == told[1].ends == [(None, None, "planted")]
    assert len(told[0].tokens) == 2
    assert told[2] == alone(greedy(4, most=5))
    assert not session.held


def test_a_device_that_is_lost_is_the_callers() -> None:
    generator, _ = new(fails=(1,), error=DeviceLostError)
    generator.add(1, greedy(2))
    generator.step(0)
    with pytest.raises(DeviceLostError, match="planted"):
        generator.step(0)


def test_a_deadline_ends_a_request_wherever_it_is() -> None:
    generator, session = new(replace(AMPLE, sequences=1))
    generator.add(1, greedy(2, most=9), deadline=10.0)
    generator.add(2, greedy(3, most=9), deadline=9.0)
    generator.add(3, greedy(4, most=2))
    assert [piece.id for piece in generator.step(8.9)] == [1]
    waiting, running = generator.step(9.0)
    assert (waiting.id, waiting.error) == (2, "not finished in time, after 0 tokens")
    assert running.id == 1
    late, next_one = generator.step(10.5)
    assert (late.id, late.error, late.tokens) == (1, "not finished in time, after 2 tokens", ())
    assert next_one.id == 3
    finish(generator)
    assert not session.held


def test_with_the_first_token_comes_how_long_a_request_waited() -> None:
    generator, _ = new(replace(AMPLE, sequences=1))
    generator.add(1, greedy(3, most=2), since=10.0)
    generator.add(2, greedy(3, most=2), since=11.0)
    came = [(at, piece) for at in (10.0, 12.0, 15.0, 19.0) for piece in generator.step(at)]
    assert [(at, piece.id, piece.waited_s) for at, piece in came] == [
        (10.0, 1, 0.0),
        (12.0, 1, None),
        (15.0, 2, 4.0),
        (19.0, 2, None),
    ]


def test_a_cancelled_request_is_gone_before_the_next_step() -> None:
    generator, session = new(replace(AMPLE, sequences=1))
    for id in (1, 2):
        generator.add(id, greedy(id + 2))
    generator.step(0)
    generator.cancel(1)
    generator.cancel(77)
    assert session.held == {}
    assert [piece.id for piece in generator.step(0)] == [2]
    generator.cancel(2)
    assert not generator.busy
    generator.add(2, greedy(9, most=1))  # its number is free again
    assert finish(generator)[2] == alone(greedy(9, most=1))


def test_seeds_and_logprobs_are_a_requests_own() -> None:
    asked = Request(prompt=(3,), sampling=Sampling(seed=5, logprobs=2), stopping=Stopping(max_tokens=6))
    generator, _ = new()
    for id in range(3):
        generator.add(id, replace(asked, sampling=replace(asked.sampling, seed=5 if id else 6)))
    told = finish(generator)
    assert told[1] == told[2] == alone(asked)
    assert told[0] != told[1]
    assert all(chosen.logprob is not None and len(chosen.top) == 2 for chosen in told[1].tokens)
    assert alone(replace(asked, sampling=Sampling(seed=5))).tokens[0].logprob is None


def test_what_could_never_be_answered_is_refused_at_once() -> None:
    generator, session = new(replace(AMPLE, blocks=8, longest=20, waiting=1))
    assert generator.holds == 21
    with pytest.raises(InputError, match=r"the prompt has token 40; the model knows 0\.\.39"):
        generator.add(1, greedy(3, 40))
    biased = replace(greedy(3), sampling=Sampling(logit_bias=((41, 1.0),)))
    with pytest.raises(InputError, match="logit_bias names token 41"):
        generator.add(1, biased)
    with pytest.raises(
        InputError, match="22 tokens; expected at most 21, which is what the engine runs for one"
    ):
        generator.add(1, greedy(3, most=21))
    assert not generator.busy
    generator.add(1, greedy(3, most=20))
    with pytest.raises(Overloaded, match="1 sequences are waiting"):
        generator.add(2, greedy(3))
    assert len(finish(generator)[1].tokens) == 20
    assert sum(len(each.tokens) for step in session.steps for each in step) == 20


def test_limits_that_the_session_has_no_room_for_are_refused() -> None:
    for wider in (replace(AMPLE, sequences=9), replace(AMPLE, blocks=65), replace(AMPLE, block_tokens=8)):
        with pytest.raises(InputError, match="the session has room for 8 and 64 of 4"):
            Generator(Remembering(room(AMPLE)), wider, decode)


def test_a_closed_generator_has_closed_its_session() -> None:
    generator, session = new()
    generator.add(1, greedy(3))
    generator.step(0)
    generator.close()
    generator.close()
    assert session.closed
    assert not generator.busy
    with pytest.raises(RunError, match="generator is closed"):
        generator.add(2, greedy(3))


def test_the_fakes_are_sessions() -> None:
    sessions: list[Decoding] = [Remembering(room(AMPLE)), Dense(tiny_writers.parts(), room(AMPLE))]
    assert [session.room.tokens for session in sessions] == [256, 256]
