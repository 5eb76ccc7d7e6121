"""What answers lose, by planted logits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from alula.core.decoding import Logits
from alula.core.model import ModelSpec, Part
from alula.verify import Reply, Verdict, beside, judge_written, likely
from alula.verify.written import LIKELIEST, NEAR, changed, divergence

TOKENS, VOCABULARY = 40, 1000
LOGITS = np.random.default_rng(0).normal(size=(TOKENS, VOCABULARY)).astype(np.float32) * 4
SPEC = ModelSpec(
    name="m",
    digest="0" * 64,
    revision="main",
    architecture="A",
    family="llama",
    task="text-generation",
    parts=(Part(name="decoder", inputs=(), outputs=()),),
    max_length=16,
    vocab_size=VOCABULARY,
    pad_id=0,
)


def reply(given: Logits, expected: Logits = LOGITS) -> Reply:
    told = likely(expected)
    return Reply(likely=told, beside=beside(given, told))


def judged(given: Logits, budget: float = 0.004, *, labelled: bool = False) -> dict[str, Verdict]:
    # Two answers: an interval is drawn over whole ones.
    replies = [reply(given[:15], LOGITS[:15]), reply(given[15:], LOGITS[15:])]
    found = judge_written(replies, SPEC, budget, "pytorch", labelled=labelled)
    return {each.check.metric: each for each in found}


def softmax(logits: Logits) -> np.ndarray:
    whole = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    shares: np.ndarray = whole / whole.sum(-1, keepdims=True)
    return shares


def test_the_same_logits_lose_nothing_and_so_do_those_that_are_shifted_together() -> None:
    for given in (LOGITS, LOGITS + np.float32(3)):
        found = judged(given, 0.0001)
        assert found["next_token_disagreement"].check.worst == 0
        assert found["perplexity_rise"].check.worst == pytest.approx(0, abs=1e-7)
        assert all(each.check.passed for each in found.values())
        assert found["next_token_disagreement"].check.samples == TOKENS


def test_the_divergence_is_that_of_the_whole_vocabulary_where_its_tail_is_thin() -> None:
    given = LOGITS + np.random.default_rng(1).normal(size=LOGITS.shape).astype(np.float32) * 0.1
    before, after = softmax(LOGITS), softmax(given)
    whole = (before * np.log(before / after)).sum(-1)
    found = divergence(reply(given))
    assert found == pytest.approx(whole, rel=0.05)
    assert (found <= whole + 1e-12).all()
    rise = judged(given)["perplexity_rise"]
    assert rise.check.worst == pytest.approx(np.exp(found.mean()) - 1)
    assert rise.interval is not None
    assert rise.interval.low < rise.check.worst < rise.interval.high


def test_what_moves_from_the_tail_to_the_likeliest_is_seen() -> None:
    order = np.argsort(-LOGITS, -1)
    tail = order[:, LIKELIEST:]
    given = LOGITS.copy()
    np.put_along_axis(given, tail, 30.0, -1)
    assert (changed(reply(given)) == 1).all()
    assert (divergence(reply(given)) > 5).all()


@pytest.mark.parametrize(("less", "lost"), [(NEAR - 0.01, 0), (NEAR + 0.01, TOKENS)])
def test_of_two_tokens_that_are_as_likely_either_is_right(less: float, lost: int) -> None:
    expected, given = LOGITS.copy(), LOGITS.copy()
    expected[:, :2] = [30.0, 30.0 - less]
    given[:, :2] = [30.0 - less, 30.0]
    assert changed(reply(given, expected)).sum() == lost


def test_one_changed_token_of_forty_fails_what_it_must() -> None:
    given = LOGITS.copy()
    clear = int(np.diff(np.sort(LOGITS, -1)[:, -2:], axis=-1).argmax())
    given[clear, given[clear].argmax()] -= 20
    found = judged(given, 0.02)["next_token_disagreement"]
    assert found.check.worst == pytest.approx(1 / TOKENS)
    assert not found.check.passed
    assert judged(given, 0.03)["next_token_disagreement"].check.passed
    # Beside labels it may be five times that, since they judge.
    assert judged(given, 0.006, labelled=True)["next_token_disagreement"].check.passed
    assert "too few samples (40)" in judged(LOGITS)["next_token_disagreement"].kept("rows").note


@pytest.mark.parametrize(
    "given",
    [np.full_like(LOGITS, np.nan), LOGITS[:, : VOCABULARY // 2], LOGITS[:, ::-1], np.roll(LOGITS, 1, 0)],
)
def test_nan_another_shape_and_other_tokens_fail(given: Logits) -> None:
    assert not any(each.check.passed for each in judged(given, 0.1).values())


def test_one_nan_is_enough_and_nothing_proves_nothing() -> None:
    given = LOGITS.copy()
    given[7, int(np.argsort(LOGITS[7])[0])] = np.nan  # of the least likely token
    assert reply(given).beside.best[7] == -1
    assert not any(each.check.passed for each in judged(given, 1.0).values())
    short = reply(LOGITS[:-1], LOGITS)
    assert np.isnan(divergence(short)).all()
    nothing = judge_written([], SPEC, 1.0, "pytorch")
    assert len(nothing) == 2
    assert not any(each.check.passed for each in nothing)


def test_a_vocabulary_smaller_than_what_is_kept_has_no_rest() -> None:
    few = LOGITS[:, :50]
    given = few + np.random.default_rng(1).normal(size=few.shape).astype(np.float32) * 0.1
    before, after = softmax(few), softmax(given)
    told = likely(few)
    found = divergence(Reply(likely=told, beside=beside(given, told)))
    assert found == pytest.approx((before * np.log(before / after)).sum(-1), abs=1e-9)


def test_a_check_keeps_what_it_was_made_on() -> None:
    verdict = judged(LOGITS)["perplexity_rise"]
    kept = replace(verdict, scores=(0.5, 0.25)).kept("abc")
    assert (kept.rows, kept.note.startswith("0.5000 -> 0.2500")) == ("abc", True)
