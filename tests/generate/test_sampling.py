from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers.generation import logits_process as reference

from alula.core.errors import InputError, RunError
from alula.generate import Sampling, Seen, choose, distribution, generator

Row = npt.NDArray[np.float32]


def row(*values: float) -> Row:
    return np.array(values, dtype=np.float32)


def whole(
    logits: Row,
    asked: Sampling,
    prompt: Sequence[int] = (),
    answer: Sequence[int] = (),
    ban: Sequence[int] = (),
) -> npt.NDArray[np.float64]:
    """The distribution over the whole vocabulary."""
    ids, probabilities = distribution(logits, Seen(logits.size, prompt, answer), asked, ban)
    assert (np.diff(ids) > 0).all()
    full = np.zeros(logits.size)
    full[ids] = probabilities
    return full


def greedy(logits: Row, asked: Sampling, prompt: Sequence[int] = (), answer: Sequence[int] = ()) -> int:
    return choose(logits, Seen(logits.size, prompt, answer), asked, generator(0)).token


def expected(logits: Row, asked: Sampling, ids: Sequence[int], ban: Sequence[int]) -> npt.NDArray[np.float64]:
    """What transformers' own processors make of it, in the order in which its `generate` puts them."""
    steps: list[Any] = []
    if asked.logit_bias:
        bias = {(token,): value for token, value in asked.logit_bias}
        steps.append(reference.SequenceBiasLogitsProcessor(sequence_bias=bias))
    steps.append(reference.RepetitionPenaltyLogitsProcessor(asked.repetition_penalty))
    if ban:
        steps.append(reference.MinNewTokensLengthLogitsProcessor(len(ids), 1, list(ban)))
    steps.append(reference.TemperatureLogitsWarper(asked.temperature))
    if asked.top_k:
        steps.append(reference.TopKLogitsWarper(asked.top_k))
    if asked.top_p < 1:
        steps.append(reference.TopPLogitsWarper(asked.top_p))
    steps.append(reference.MinPLogitsWarper(asked.min_p))
    scores = torch.from_numpy(logits).to(torch.float64)[None]
    for step in steps:
        scores = step(torch.tensor([list(ids)]), scores)
    found: npt.NDArray[np.float64] = torch.softmax(scores, -1)[0].numpy()
    return found


@pytest.mark.parametrize("seed", range(120))
def test_the_distribution_is_that_of_transformers(seed: int) -> None:
    draw = np.random.default_rng(seed)
    size = int(draw.choice([5, 50, 3_000]))
    logits = (draw.normal(size=size) * draw.choice([0.1, 1, 4, 20])).astype(np.float32)
    if draw.random() < 0.3:
        logits[draw.integers(size, size=size // 4)] = -np.inf
        logits[0] = 1.5
    biased = draw.choice(size, size=draw.integers(0, 4), replace=False)
    asked = Sampling(
        temperature=float(draw.choice([0.05, 0.7, 1.0, 2.0])),
        top_k=int(draw.choice([0, 1, 3, 40, 9_999])),
        top_p=float(draw.choice([0.0, 0.1, 0.5, 0.9, 0.999, 1.0])),
        min_p=float(draw.choice([0.0, 0.02, 0.3, 1.0])),
        repetition_penalty=float(draw.choice([1.0, 1.08, 1.5, 0.7])),
        logit_bias=tuple((int(token), float(draw.integers(-8, 9)) / 2) for token in biased),
    )
    prompt, answer = draw.integers(0, size, size=12).tolist(), draw.integers(0, size, size=9).tolist()
    ban = draw.integers(1, size, size=draw.integers(0, 3)).tolist()
    ours = whole(logits, asked, prompt, answer, ban)
    theirs = expected(logits, asked, prompt + answer, ban)
    assert ((ours > 0) == (theirs > 0)).all()
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=0)


@pytest.mark.parametrize("penalty", [1.0, 1.08, 1.3])
def test_the_best_token_is_that_of_transformers(penalty: float) -> None:
    draw = np.random.default_rng(7)
    process = reference.RepetitionPenaltyLogitsProcessor(penalty)
    for _ in range(100):
        logits = draw.normal(size=200).astype(np.float32)
        prompt = draw.integers(0, 200, size=60).tolist()
        best = process(torch.tensor([prompt]), torch.from_numpy(logits.copy())[None]).argmax()
        assert greedy(logits, Sampling(temperature=0, repetition_penalty=penalty), prompt) == int(best)


def test_of_equal_logits_top_k_keeps_all_and_top_p_the_first() -> None:
    logits = row(0, 1, 1, 1, 1)
    kept = whole(logits, Sampling(top_k=2))
    assert np.flatnonzero(kept).tolist() == [1, 2, 3, 4]
    assert np.flatnonzero(whole(row(0, 0, 0, 0), Sampling(top_p=0.5))).tolist() == [0, 1]
    assert greedy(logits, Sampling(temperature=0)) == 1


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999999])
@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0])
def test_the_nucleus_of_a_large_vocabulary_is_the_same_as_by_sorting_all(share: float, spread: float) -> None:
    """Flat ones reach far beyond the tokens that are looked at first, and have equals on the border."""
    logits = (np.random.default_rng(3).normal(size=20_000) * spread).astype(np.float32)
    kept = whole(logits, Sampling(top_p=share))
    probabilities = np.exp(logits.astype(np.float64) - logits.max())
    probabilities /= probabilities.sum()
    order = np.argsort(-probabilities, kind="stable")
    before = np.concatenate([[0], np.cumsum(probabilities[order])[:-1]])
    assert np.flatnonzero(kept).tolist() == sorted(order[before < share])


def test_repetition_is_punished_once_however_often_a_token_came() -> None:
    """Twelve equal cells of a table must not make the thirteenth impossible."""
    logits = row(2, -2, 1, 0)
    asked = Sampling(repetition_penalty=2.0)
    once = whole(logits, asked, prompt=[0], answer=[1])
    often = whole(logits, asked, prompt=[0] * 12, answer=[1] * 12)
    np.testing.assert_array_equal(once, often)
    np.testing.assert_allclose(once, np.exp([1, -4, 1, 0]) / np.exp([1, -4, 1, 0]).sum())


def test_unless_asked_a_long_identifier_is_not_punished() -> None:
    """xberg-io/xberg#1704: a penalty that nobody had asked for spoilt long identifiers."""
    logits = row(3, 2, 1)
    np.testing.assert_array_equal(whole(logits, Sampling(), [0, 1], [0] * 36), whole(logits, Sampling()))


def test_ids_outside_the_vocabulary_hold_the_place_of_images_and_are_skipped() -> None:
    """openvinotoolkit/openvino.genai#4405: a penalty stumbled over ids that stand for images."""
    logits = row(1, 2, 3)
    asked = Sampling(repetition_penalty=1.5, presence_penalty=1.0)
    odd = [3, 200_000, -1, -3]
    np.testing.assert_array_equal(
        whole(logits, asked, [0, *odd], [1, *odd], ban=odd), whole(logits, asked, [0], [1])
    )


def test_presence_and_frequency_count_what_was_answered_not_the_prompt() -> None:
    logits = row(0, 0, 0, 0)
    asked = Sampling(presence_penalty=0.5, frequency_penalty=0.25)
    scores = np.array([0, -0.75, -1.25, 0])
    np.testing.assert_allclose(
        whole(logits, asked, prompt=[3, 3], answer=[1, 2, 2, 2]), np.exp(scores) / np.exp(scores).sum()
    )


def test_what_was_seen_grows_token_by_token() -> None:
    grown = Seen(5, [1, 1, 9])
    for token in (2, 2, 7):
        grown.add(token)
    at_once = Seen(5, [1, 1, 9], [2, 2, 7])
    assert grown.distinct.tolist() == at_once.distinct.tolist() == [False, True, True, False, False]
    assert grown.counts.tolist() == at_once.counts.tolist() == [0, 0, 2, 0, 0]


def test_a_bias_can_ban_and_force() -> None:
    logits = row(5, 4, 3)
    assert greedy(logits, Sampling(temperature=0, logit_bias=((0, -100.0),))) == 1
    assert greedy(logits, Sampling(temperature=0, logit_bias=((2, 100.0),))) == 2


def test_a_bias_for_a_token_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="logit_bias names token 3; the vocabulary has 3 tokens"):
        greedy(row(1, 2, 3), Sampling(logit_bias=((3, 1.0),)))


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize(
    ("logits", "what"),
    [
        (row(1, np.nan, np.nan), "NaN in 2 of 3 logits"),
        (row(np.nan, np.nan, np.nan), "NaN in 3 of 3 logits"),
        (row(-np.inf, -np.inf), "-inf in all 2 logits"),
        (row(0, np.inf), "an infinite logit"),
    ],
)
def test_broken_logits_are_an_error_and_never_token_0(logits: Row, what: str, temperature: float) -> None:
    """Blaizzy/mlx-vlm#1163: the best of logits that are all NaN was token 0, for ever."""
    with pytest.raises(RunError, match=f"the model answered {what}"):
        greedy(logits, Sampling(temperature=temperature))


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_minimum_that_bans_everything_is_refused(temperature: float) -> None:
    logits = row(-np.inf, 1, -np.inf)
    with pytest.raises(InputError, match="min_tokens bans every token"):
        choose(logits, Seen(3, []), Sampling(temperature=temperature), generator(0), banned=(1,))


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_banned_token_does_not_come(temperature: float) -> None:
    asked, random = Sampling(temperature=temperature), generator(1)
    seen = Seen(3, [])
    assert {choose(row(9, 1, 9), seen, asked, random, banned=(0, 2)).token for _ in range(20)} == {1}


def test_a_token_comes_where_the_summed_probabilities_pass_the_random_number() -> None:
    logits = np.random.default_rng(0).normal(size=50).astype(np.float32)
    logits[:3] = logits[20] = logits[-5:] = -np.inf
    asked = Sampling(top_k=20)
    reached = np.cumsum(whole(logits, asked))
    for seed in range(300):
        token = choose(logits, Seen(50, []), asked, generator(seed)).token
        assert token == int(np.argmax(reached > generator(seed).random()))


class Always(np.random.Generator):
    """A generator stuck at one number."""

    def __init__(self, number: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.number = number

    def random(self, *_: Any, **__: Any) -> Any:
        return self.number


@pytest.mark.parametrize(("number", "token"), [(0.0, 1), (1 - 2**-53, 3)])
def test_the_ends_of_the_random_numbers_choose_what_can_come(number: float, token: int) -> None:
    logits = row(-1_000, 0, 0, 0, -1_000)  # exp(-1000) is 0
    assert choose(logits, Seen(5, []), Sampling(), Always(number)).token == token


def test_the_largest_random_number_finds_a_token_however_the_sum_is_rounded() -> None:
    draw = np.random.default_rng(5)
    for _ in range(50):
        logits = draw.normal(size=300).astype(np.float32)
        assert choose(logits, Seen(300, []), Sampling(), Always(1 - 2**-53)).token < 300


def test_what_the_model_rules_out_is_not_among_the_tokens_that_may_come() -> None:
    ids, probabilities = distribution(row(-np.inf, 0, -np.inf, 0), Seen(4, []), Sampling(top_k=3))
    assert (ids.tolist(), probabilities.tolist()) == ([1, 3], [0.5, 0.5])


def test_one_random_number_a_token_and_none_for_the_best() -> None:
    used, fresh = generator(3), generator(3)
    choose(row(1, 2, 3), Seen(3, []), Sampling(temperature=0), used)
    assert used.bit_generator.state == fresh.bit_generator.state
    choose(row(1, 2, 3), Seen(3, []), Sampling(), used)
    fresh.random()
    assert used.bit_generator.state == fresh.bit_generator.state


def answered(seeds: Sequence[int]) -> list[list[int]]:
    """Twenty tokens for each seed, chosen side by side as a batch would."""
    logits = np.random.default_rng(1).normal(size=(20, 500)).astype(np.float32)
    requests = [(generator(seed), Seen(500, []), Sampling(repetition_penalty=1.2)) for seed in seeds]
    tokens: list[list[int]] = [[] for _ in seeds]
    for step in logits:
        for (random, seen, asked), answer in zip(requests, tokens, strict=True):
            answer.append(choose(step, seen, asked, random).token)
            seen.add(answer[-1])
    return tokens


def test_a_seed_gives_the_same_answer_whoever_else_is_in_the_batch() -> None:
    [alone] = answered([7])
    assert answered([1, 7, 2])[1] == alone == answered([7, 7])[1]
    assert answered([8]) != [alone]
    assert answered([-7]) != [alone]


def test_no_seed_is_a_new_one_every_time() -> None:
    assert generator(None).random() != generator(None).random()


def test_a_tiny_temperature_is_the_best_token() -> None:
    assert whole(row(1, 3, 2), Sampling(temperature=5e-324)).tolist() == [0, 1, 0]


def test_logprobs_are_of_the_untouched_logits_best_first_and_finite() -> None:
    logits = row(1, 3, -np.inf, 2, 3)
    asked = Sampling(temperature=0, logprobs=5, logit_bias=((0, 50.0),), repetition_penalty=2.0)
    chosen = choose(logits, Seen(5, [1, 3]), asked, generator(0))
    logs = torch.log_softmax(torch.tensor([1, 3, -np.inf, 2, 3], dtype=torch.float64), 0).tolist()
    assert chosen.token == 0
    assert chosen.logprob == pytest.approx(logs[0])
    assert [token for token, _ in chosen.top] == [1, 4, 3, 0]  # of equals the lower id; -inf is left out
    assert [logprob for _, logprob in chosen.top] == pytest.approx([logs[1], logs[4], logs[3], logs[0]])


@pytest.mark.parametrize(
    ("asked", "reported", "count"),
    [(None, False, 0), (0, True, 0), (1, True, 1), (2, True, 2), (20, True, 3)],
)
def test_as_many_logprobs_as_asked(asked: int | None, reported: bool, count: int) -> None:
    chosen = choose(row(1, 3, 3), Seen(3, []), Sampling(logprobs=asked), generator(0))
    assert (chosen.logprob is not None, len(chosen.top)) == (reported, count)


def test_the_logits_are_left_as_they_were() -> None:
    logits = row(1, 2, 3)
    asked = Sampling(logit_bias=((0, 5.0),), repetition_penalty=2, presence_penalty=1, logprobs=1)
    choose(logits, Seen(3, [1], [2]), asked, generator(0), banned=(1,))
    assert logits.tolist() == [1, 2, 3]
