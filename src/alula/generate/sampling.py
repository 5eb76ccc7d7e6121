"""From one row of logits to one token. Pure: the random generator is an argument and is asked once per token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from alula.core.errors import InputError, RunError
from alula.generate.request import Sampling

Logits: TypeAlias = npt.NDArray[np.float32]
Scores: TypeAlias = npt.NDArray[np.float64]
Ids: TypeAlias = npt.NDArray[np.int64]

# Sorting 150,000 probabilities takes milliseconds a token, and the nucleus is nearly always among these.
_FIRST_LOOK = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """A token, and where asked its log-probability and the best tokens with theirs, from the untouched logits."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Seen:
    """Which tokens a sequence holds: the distinct ones of prompt and answer, and how often each was answered.

    Ids outside the vocabulary, such as those that hold the place of an image, are not counted.
    """

    __slots__ = ("counts", "distinct")

    def __init__(self, vocabulary: int, prompt: Sequence[int], answer: Iterable[int] = ()) -> None:
        ids = np.asarray(prompt, dtype=np.int64)
        self.distinct = np.zeros(vocabulary, dtype=np.bool_)
        self.distinct[_inside(ids, vocabulary)] = True
        self.counts = np.zeros(vocabulary, dtype=np.int32)
        for token in answer:
            self.add(token)

    def add(self, token: int) -> None:
        """Count a token that was answered."""
        if 0 <= token < self.counts.size:
            self.distinct[token] = True
            self.counts[token] += 1


def generator(seed: int | None) -> np.random.Generator:
    """The random numbers of one request: its own, so that no neighbour in a batch can shift them."""
    return np.random.Generator(np.random.PCG64(None if seed is None else seed % 2**64))


def choose(
    logits: Logits, seen: Seen, asked: Sampling, random: np.random.Generator, banned: Sequence[int] = ()
) -> Chosen:
    """The next token of one sequence; `banned` are tokens that must not come yet.

    Raises RunError where the logits are broken, and InputError where what is asked leaves no token.
    """
    _refuse_broken(logits)
    if asked.temperature == 0:
        token = int(np.argmax(_scores(logits, seen, asked, banned)))
    else:
        ids, probabilities = distribution(logits, seen, asked, banned)
        token = int(ids[_drawn(probabilities, random.random())])
    if asked.logprobs is None:
        return Chosen(token=token)
    peak = float(logits.max())
    logprobs = logits.astype(np.float64) - peak
    logprobs -= np.log(np.exp(logprobs).sum())
    return Chosen(token=token, logprob=float(logprobs[token]), top=_best(logprobs, asked.logprobs))


def distribution(
    logits: Logits, seen: Seen, asked: Sampling, banned: Sequence[int] = ()
) -> tuple[Ids, Scores]:
    """The tokens that may come, ascending, and their probabilities.

    In the order of transformers: bias, penalties, bans, temperature, top_k, top_p, min_p. Temperature 0 has no
    distribution.
    """
    _refuse_broken(logits)
    scores = _scores(logits, seen, asked, banned)
    allowed = scores > -np.inf
    if 0 < asked.top_k < scores.size:
        allowed &= scores >= np.partition(scores, -asked.top_k)[-asked.top_k]
    ids = np.flatnonzero(allowed)
    probabilities = _softmax(scores[ids], asked.temperature)
    if asked.top_p < 1:
        nucleus = _nucleus(probabilities, asked.top_p)
        ids, probabilities = ids[nucleus], _normalised(probabilities[nucleus])
    if asked.min_p > 0:
        kept = probabilities >= asked.min_p * probabilities.max()
        ids, probabilities = ids[kept], _normalised(probabilities[kept])
    return ids, probabilities


def _refuse_broken(logits: Logits) -> None:
    """An argmax over NaN is token 0, for ever; better one request that fails and says why."""
    assert logits.ndim == 1, f"logits of {logits.ndim} axes"
    peak = logits.max()
    if np.isnan(peak):
        count = int(np.isnan(logits).sum())
        raise RunError(f"the model answered NaN in {count} of {logits.size} logits; no token can be chosen")
    if np.isposinf(peak):
        raise RunError("the model answered an infinite logit; no token can be chosen")
    if np.isneginf(peak):
        raise RunError(f"the model answered -inf in all {logits.size} logits; no token can be chosen")


def _scores(logits: Logits, seen: Seen, asked: Sampling, banned: Sequence[int]) -> Scores:
    """The logits after bias, penalties and bans, at least one of them finite."""
    assert seen.distinct.size == logits.size, f"{seen.distinct.size} tokens, {logits.size} logits"
    scores = logits.astype(np.float64)
    if asked.logit_bias:
        tokens = np.array([token for token, _ in asked.logit_bias], dtype=np.int64)
        if _inside(tokens, logits.size).size < tokens.size:
            raise InputError(
                f"logit_bias names token {tokens.max()}; the vocabulary has {logits.size} tokens"
            )
        scores[tokens] += [bias for _, bias in asked.logit_bias]
    if asked.repetition_penalty != 1:
        repeated = scores[seen.distinct]
        penalty = asked.repetition_penalty
        scores[seen.distinct] = np.where(repeated < 0, repeated * penalty, repeated / penalty)
    if asked.frequency_penalty or asked.presence_penalty:
        scores -= seen.counts * asked.frequency_penalty + (seen.counts > 0) * asked.presence_penalty
    if len(banned):
        scores[_inside(np.asarray(banned, dtype=np.int64), logits.size)] = -np.inf
        if np.isneginf(scores.max()):
            raise InputError("min_tokens bans every token that the model allows here")
    return scores


def _inside(ids: Ids, vocabulary: int) -> Ids:
    return ids[(ids >= 0) & (ids < vocabulary)]


def _softmax(scores: Scores, temperature: float) -> Scores:
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, as it should
        return _normalised(np.exp((scores - scores.max()) / temperature))


def _normalised(weights: Scores) -> Scores:
    shares: Scores = weights / weights.sum()
    return shares


def _nucleus(probabilities: Scores, share: float) -> Ids:
    """Where the fewest of the most probable are that together have at least `share`; of equals, the first."""
    look = _FIRST_LOOK
    while True:
        ranked = probabilities
        if look < probabilities.size:
            ranked = np.partition(probabilities, -look)[-look:]
        reached = np.cumsum(np.sort(ranked)[::-1])
        if reached[-1] >= share or look >= probabilities.size:
            break
        look *= 16
    count = 1 + int(np.searchsorted(reached[:-1], share, side="left"))
    least = np.partition(ranked, -count)[-count]
    above = np.flatnonzero(probabilities > least)
    equal = np.flatnonzero(probabilities == least)
    return np.sort(np.concatenate([above, equal[: count - above.size]]))


def _drawn(probabilities: Scores, uniform: float) -> int:
    """The index whose stretch of the summed probabilities holds `uniform`, which is in [0, 1)."""
    reached = np.cumsum(probabilities)
    return int(np.searchsorted(reached, uniform * reached[-1], side="right"))


def _best(logprobs: Scores, count: int) -> tuple[tuple[int, float], ...]:
    """The most probable tokens, best first, of equals the lower id; those that cannot come are left out."""
    if not count:
        return ()
    count = min(count, logprobs.size)
    border = np.partition(logprobs, -count)[-count]
    ids = np.flatnonzero((logprobs >= border) & (logprobs > -np.inf))
    order = ids[np.argsort(-logprobs[ids], kind="stable")][:count]
    return tuple((int(token), float(logprobs[token])) for token in order)
