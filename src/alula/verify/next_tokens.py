"""What a model that writes text says of the next token, beside what its reference says. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from alula.core.check import Check, Reference
from alula.core.decoding import Logits
from alula.core.tensor import Feeds
from alula.verify.limits import FAULTY, HIGHER_IS_BETTER, NextTokens, next_tokens_for
from alula.verify.metrics import Floats

OUTPUT = "logits"

DIVERGENCE = "kl_divergence"
NEXT_TOKEN_LOSSES = (DIVERGENCE, "next_token_agreement")
"""What a precision loses of the next token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """A prompt that is run at once, and tokens that are given behind it one by one, whatever the model would say.

    `source` is what an encoder reads, `given` what a sequence with images is started with; `greedy` says that the
    tokens behind are the reference's own best ones, `drawn` that the prompt is of random ids and no text.
    """

    name: str
    prompt: tuple[int, ...]
    follow: tuple[int, ...]
    source: tuple[int, ...] = ()
    greedy: bool = False
    drawn: bool = False
    given: Feeds = field(default_factory=dict, compare=False, repr=False)

    @property
    def tokens(self) -> tuple[int, ...]:
        """All that is run: what would come behind the last of `follow` is not asked for."""
        return (*self.prompt, *self.follow[:-1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """The logits of one script behind its prompt and each further token, [follow, vocabulary], of both sides."""

    script: Script
    expected: Logits
    given: Logits


def compare_next_tokens(
    said: Sequence[Said], precision: str, reference: Reference, *, promised: bool = False
) -> tuple[Check, ...]:
    """How far the logits are from the reference's, and what that does to the next token.

    NaN, another shape, or nothing at all is a failed check, not an error. Where a budget is `promised` on the user's
    rows, whatever is less than fp32 is only told from a fault.
    """
    limits = next_tokens_for(FAULTY if promised and precision != "fp32" else precision)
    checks = []
    if limits.max_error is not None:
        checks.append(_check("max_error", errors(said), limits.max_error, reference))
    checks.append(_check(DIVERGENCE, divergences(said), limits.divergence, reference))
    agreed, apart = agreements(said, limits)
    note = f"{apart} of {len(agreed)} fell between tokens less than {limits.near:g} apart" if apart else ""
    return (*checks, _check("next_token_agreement", agreed, limits.agreement, reference, note))


def same_next_tokens(metric: str, said: Sequence[Said], precision: str) -> Check:
    """Whether an engine says the same another way: alone and in a batch, at once and in chunks.

    To the digits that fp32 has; a lower precision may round otherwise there, and that costs no more than itself may.
    The largest of all logits says little there: of 50,000 a token some are off by five times what most are.
    """
    limits = next_tokens_for(precision)
    if precision == "fp32" and limits.max_error is not None:
        return _check(metric, errors(said), limits.max_error, "own-graph")
    return _check(f"{metric}_kl", divergences(said), limits.divergence, "own-graph")


def errors(said: Sequence[Said]) -> Floats:
    """Per script, the largest difference of a logit as a share of the largest logit of all."""
    scale = max((float(np.abs(each.expected).max(initial=0.0)) for each in said), default=0.0) or 1.0
    found = []
    for each in said:
        expected, given = _pair(each)
        with np.errstate(invalid="ignore", over="ignore"):
            found.append(float(np.abs(expected - given).max(initial=0.0)) / scale)
    return np.array(found, np.float64)


def divergences(said: Sequence[Said]) -> Floats:
    """Per token, Kullback and Leibler's divergence of the candidate's distribution from the reference's, in nats."""
    found = [np.empty(0)]
    for each in said:
        expected, given = (_log_shares(side) for side in _pair(each))
        with np.errstate(invalid="ignore", over="ignore"):
            found.append((np.exp(expected) * (expected - given)).sum(axis=-1))
    return np.concatenate(found)


def agreements(said: Sequence[Said], limits: NextTokens) -> tuple[Floats, int]:
    """Per token, 1.0 where the best one is the reference's or so near to it that either is right, else 0.0.

    And how many were another one that was near.
    """
    found, apart = [np.empty(0)], 0
    for each in said:
        expected, given = _pair(each)
        best = given.argmax(axis=-1)
        with np.errstate(invalid="ignore"):
            less = expected.max(axis=-1) - expected[np.arange(len(expected)), best]
        agreed = np.where(less <= limits.near, 1.0, 0.0)
        whole = np.isfinite(expected).all(axis=-1) & np.isfinite(given).all(axis=-1)
        found.append(np.where(whole, agreed, np.nan))
        apart += int(((less > 0) & (less <= limits.near)).sum())
    return np.concatenate(found), apart


def _pair(each: Said) -> tuple[Floats, Floats]:
    """Both sides in float64, the candidate's NaN throughout where it has another shape."""
    expected = each.expected.astype(np.float64)
    if each.given.shape != expected.shape:
        return expected, np.full(expected.shape, np.nan)
    return expected, each.given.astype(np.float64)


def _log_shares(logits: Floats) -> Floats:
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = logits - logits.max(axis=-1, keepdims=True)
        shares: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shares


def _check(metric: str, values: Floats, limit: float, reference: Reference, note: str = "") -> Check:
    """Means of what is counted by token, since single ones tell nothing; the worst of what is measured by script."""
    higher = metric in HIGHER_IS_BETTER
    mean = float(values.mean()) if len(values) else float("nan")
    worst = float(values.max()) if len(values) else float("nan")
    return Check(
        output=OUTPUT,
        metric=metric,
        samples=len(values),
        worst=mean if higher or metric.startswith("kl_") or metric.endswith("_kl") else worst,
        mean=mean,
        limit=limit,
        higher_is_better=higher,
        reference=reference,
        note=note,
    )


def some_of(scripts: Sequence[Script], most: int) -> Iterator[int]:
    """Places of a few scripts, from the shortest prompt to the longest."""
    order = sorted(range(len(scripts)), key=lambda at: len(scripts[at].prompt))
    yield from dict.fromkeys(order[at] for at in np.linspace(0, len(order) - 1, most).astype(int))
