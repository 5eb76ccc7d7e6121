"""What answers to a user's prompts lose against the reference's, token by token, as a budget limits it. Pure.

A vocabulary of 50,000 at every token of a thousand answers is more than a machine holds, so of each next token the
likeliest are kept by themselves and all others together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from alula.core.check import Reference
from alula.core.decoding import Logits
from alula.core.model import ModelSpec
from alula.verify.budget import BESIDE_LABELS, Verdict, clauses_for, verdict
from alula.verify.intervals import Interval, Rows, bootstrap, wilson
from alula.verify.losses import Loss
from alula.verify.metrics import Floats

LIKELIEST = 256
"""Tokens that are told apart at each place. What moves from or to the others is seen, and what moves among them is not:
a divergence comes out smaller by that, never larger."""

NEAR = 0.25
"""Nats: of two tokens of which one is less than 1.3 times as likely, either is right. A vocabulary has many such pairs,
and nobody can tell which was taken; bf16 alone swaps them."""

LEAST = 1e-12

OUTPUT = "answers"

Ids: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Likely:
    """What a reference says of each next token of one answer: its likeliest tokens, the best first, [tokens, kept].

    `shares` are logarithms of probabilities, and `rest` those of all other tokens together.
    """

    tokens: Ids
    shares: Floats
    rest: Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """What a candidate says at the same places, of the same tokens; `best` are its own, -1 where anything is NaN."""

    best: Ids
    shares: Floats
    rest: Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """One answer of the reference, as both sides saw it come."""

    likely: Likely
    beside: Beside


def likely(logits: Logits) -> Likely:
    """The likeliest tokens at each place."""
    shares = _log_shares(logits)
    kept = min(LIKELIEST, shares.shape[-1])
    tokens = np.argpartition(-shares, kept - 1, axis=-1)[:, :kept]
    best_first = np.argsort(-np.take_along_axis(shares, tokens, -1), axis=-1, kind="stable")
    tokens = np.take_along_axis(tokens, best_first, -1)
    own = np.take_along_axis(shares, tokens, -1)
    return Likely(tokens=tokens, shares=own, rest=_rest(own))


def beside(logits: Logits, reference: Likely) -> Beside:
    """What a candidate's logits say of the reference's likeliest tokens; NaN throughout where the shape is another."""
    places, kept = reference.tokens.shape
    if len(logits) != places or logits.shape[-1] <= reference.tokens.max(initial=0):
        nan = np.full((places, kept), np.nan)
        return Beside(best=np.full(places, -1), shares=nan, rest=nan[:, 0])
    shares = _log_shares(logits)
    own = np.take_along_axis(shares, reference.tokens, -1)
    best = np.where(np.isnan(shares).any(-1), -1, logits.argmax(-1))
    return Beside(best=best, shares=own, rest=_rest(own))


def changed(reply: Reply) -> Floats:
    """By token, 1.0 where the candidate's best one is another that the reference finds clearly less likely."""
    shares, best = reply.likely.shares, reply.beside.best
    named = reply.likely.tokens == best[:, None]
    own = np.where(named, shares, -np.inf).max(-1)
    with np.errstate(invalid="ignore"):
        other: Floats = np.where(shares[:, 0] - own <= NEAR, 0.0, 1.0)
    return np.where((best < 0) | np.isnan(shares).any(-1), np.nan, other)


def divergence(reply: Reply) -> Floats:
    """By token, Kullback and Leibler's divergence of the candidate from the reference, in nats."""
    before = np.column_stack([reply.likely.shares, reply.likely.rest])
    after = np.column_stack([reply.beside.shares, reply.beside.rest])
    with np.errstate(invalid="ignore", over="ignore"):
        parts = np.where(np.isneginf(before), 0.0, np.exp(before) * (before - after))
    nats: Floats = np.maximum(parts.sum(-1), 0.0)
    return nats


def judge_written(
    replies: Sequence[Reply], spec: ModelSpec, budget: float, reference: Reference, *, labelled: bool = False
) -> tuple[Verdict, ...]:
    """What the next tokens lose; `labelled` says that `judge_labels` judges what is written.

    NaN, another shape, or nothing to compare is a failed check, not an error.
    """
    times = BESIDE_LABELS if labelled else 1
    return tuple(
        verdict(
            replace(clause, times=times * clause.times), WRITTEN[clause.metric](replies), budget, reference
        )
        for clause in clauses_for(spec.task)
        if clause.when == "no labels"
    )


def _disagreement(replies: Sequence[Reply]) -> Loss:
    """Tokens of one answer hang together: the interval is as wide as tokens make it or answers, drawn whole."""
    loss = _over_tokens([changed(reply) for reply in replies], float)
    if not np.isfinite(loss.value):
        return loss
    by_token = wilson(loss.value, loss.samples)
    return replace(loss, interval=by_token.hull(loss.interval) if loss.interval else by_token)


def _perplexity(replies: Sequence[Reply]) -> Loss:
    return _over_tokens([divergence(reply) for reply in replies], lambda mean: float(np.expm1(mean)))


WRITTEN: Mapping[str, Callable[[Sequence[Reply]], Loss]] = {
    "next_token_disagreement": _disagreement,
    "perplexity_rise": _perplexity,
}
"""By metric: what `judge_written` can measure."""


def _over_tokens(by_answer: Sequence[Floats], read: Callable[[float], float]) -> Loss:
    """What is read off the mean over all tokens, with answers drawn whole for the interval."""
    sums = np.array([values.sum() for values in by_answer], np.float64)
    sizes = np.array([len(values) for values in by_answer], np.float64)
    count = int(sizes.sum())

    def of(rows: Rows) -> float:
        return read(float(sums[rows].sum() / sizes[rows].sum()))

    value = of(np.arange(len(sums))) if count else float("nan")
    interval: Interval | None = bootstrap(of, len(sums)) if np.isfinite(value) else None
    return Loss(output=OUTPUT, value=value, mean=value, samples=count, interval=interval)


def _log_shares(logits: Logits) -> Floats:
    whole = logits.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = whole - whole.max(axis=-1, keepdims=True)
        shares: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shares


def _rest(own: Floats) -> Floats:
    """The logarithm of what is left beside these shares, which rounding would make of less than `LEAST`."""
    rest: Floats = np.log(np.maximum(1.0 - np.exp(own).sum(-1), LEAST))
    return rest
