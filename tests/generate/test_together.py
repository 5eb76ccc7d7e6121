"""The parts together on a model without an engine: whoever shares the steps, an answer is the one it gets alone."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.core.errors import RunError
from alula.generate import (
    Answer,
    Limits,
    Request,
    Sampling,
    Seen,
    State,
    Stopping,
    answered,
    choose,
    entry,
    generator,
    plan,
    submit,
)

VOCABULARY = 40
END = 0
BROKEN = 39  # a prompt that begins with it makes the model answer NaN, from its third token on
AMPLE = Limits(sequences=8, step_tokens=64, chunk_tokens=64, block_tokens=4, blocks=64)
TIGHT = Limits(sequences=4, step_tokens=5, chunk_tokens=2, block_tokens=1, blocks=22)


def decode(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token % 26) for token in tokens)


def logits(context: Sequence[int]) -> npt.NDArray[np.float32]:
    """A model: what comes next depends on every token before, in order."""
    if context[0] == BROKEN and len(context) > 2:
        return np.full(VOCABULARY, np.nan, dtype=np.float32)
    draw = np.random.default_rng(zlib.crc32(bytes(context)))
    return draw.normal(size=VOCABULARY).astype(np.float32) * 2


def serve(requests: Sequence[Request], limits: Limits) -> tuple[list[str], list[str | None], int]:
    """What each is sent, why each ended, and how often one was preempted; one joins at every step."""
    state = State()
    cache: dict[int, list[int]] = {}
    answers = [Answer(request.stopping, decode) for request in requests]
    seen = [Seen(VOCABULARY, request.prompt) for request in requests]
    random = [generator(request.sampling.seed) for request in requests]
    sent = [""] * len(requests)
    endings: list[str | None] = [None] * len(requests)
    coming, preempted = list(enumerate(requests)), 0
    while coming or state != State():
        if coming:
            id, request = coming.pop(0)
            state = submit(state, limits, entry(id, len(request.prompt), request.stopping.max_tokens))
        state, step = plan(state, limits)
        preempted += len(step.preempted)
        for gone in step.preempted:
            del cache[gone]
        ended = set()
        for chunk in step.chunks:
            id, answer = chunk.id, answers[chunk.id]
            held = cache.setdefault(id, [])
            assert len(held) == chunk.start
            held += [*requests[id].prompt, *answer.tokens][chunk.start : chunk.start + chunk.count]
            if not chunk.answers:
                continue
            try:
                chosen = choose(logits(held), seen[id], requests[id].sampling, random[id], answer.banned)
            except RunError:
                ended.add(id)
                endings[id] = "error"
                continue
            seen[id].add(chosen.token)
            sent[id] += answer.push(chosen.token)
            if answer.ending:
                ended.add(id)
                endings[id] = answer.ending
        state = answered(state, step, ended)
    return sent, endings, preempted


requests = st.builds(
    lambda prompt, seed, temperature, penalty, most, least, stop: Request(
        prompt=tuple(prompt),
        sampling=Sampling(
            seed=seed, temperature=temperature, repetition_penalty=penalty, presence_penalty=0.3, top_p=0.95
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
)


@given(asked=st.lists(requests, max_size=6))
def test_an_answer_is_the_same_alone_in_company_in_chunks_and_after_preemption(asked: list[Request]) -> None:
    alone = [serve([request], AMPLE) for request in asked]
    for limits in (AMPLE, TIGHT):
        sent, endings, _ = serve(asked, limits)
        assert sent == [text for [text], _, _ in alone]
        assert endings == [ending for _, [ending], _ in alone]


def request(first: int, most: int) -> Request:
    return Request(prompt=(first, 5, 6), sampling=Sampling(seed=first), stopping=Stopping(max_tokens=most))


def test_preempted_answers_lose_nothing() -> None:
    asked = [request(first, most=14) for first in (2, 3, 4, 7)]
    sent, endings, preempted = serve(asked, TIGHT)
    assert preempted  # otherwise this says nothing
    assert sent == [serve([each], AMPLE)[0][0] for each in asked]
    assert endings == ["length"] * 4
    assert [len(text) for text in sent] == [14] * 4


@pytest.mark.parametrize("place", [0, 1, 2])
def test_logits_of_nan_are_the_error_of_one_request_alone(place: int) -> None:
    good = [request(2, most=9), request(3, most=9)]
    asked = [*good[:place], request(BROKEN, most=9), *good[place:]]
    sent, endings, _ = serve(asked, AMPLE)
    assert endings.pop(place) == "error"
    assert sent.pop(place) == ""
    assert endings == ["length"] * 2
    assert sent == serve(good, AMPLE)[0]
