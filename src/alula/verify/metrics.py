"""How far two outputs are apart. Pure numpy, in float64; a NaN or a missing value always reaches the result."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from alula.core.tensor import Array

Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]

Ids: TypeAlias = NDArray[np.int64]

BLOCK = 1024
"""Rows whose neighbours are looked for at once, which bounds the memory."""

EQUALLY_NEAR = 1e-6
"""Cosines this close are equal: fp32 tells no more."""

LONGEST_SPAN = 30
"""Tokens in an answer at most: the usual bound for extractive question answering."""


def aligned(reference: Array, candidate: Array | None) -> Floats:
    """`candidate` in float64, or NaN throughout where it is missing or has another shape."""
    if candidate is None or candidate.shape != reference.shape:
        return np.full(reference.shape, np.nan)
    return candidate.astype(np.float64)


def cosines(reference: Floats, candidate: Floats) -> Floats:
    """Cosine per row; NaN for a row of zeros, which has no direction."""
    a, b = (x.reshape(len(x), -1) for x in (reference, candidate))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        cosine: Floats = (a * b).sum(axis=1) / lengths
    return cosine


def differences(reference: Floats, candidate: Floats, scale: float = 1.0) -> Floats:
    """Largest absolute difference per row, in units of `scale`."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(reference - candidate) / scale
    largest: Floats = apart.reshape(len(apart), -1).max(axis=1, initial=0.0)
    return largest


def step_differences(reference: Floats, candidate: Floats, scale: float = 1.0) -> Floats:
    """Per row, the mean over its steps of the largest absolute difference of a step, in units of `scale`."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(reference - candidate) / scale
    steps = apart.reshape(len(apart), apart.shape[1], -1).max(axis=2, initial=0.0)
    means: Floats = steps.mean(axis=1)
    return means


def label_agreements(reference: Floats, candidate: Floats, tie: float) -> Floats:
    """Per row of logits, 1.0 where the candidate's best label is the reference's or ties with it, else 0.0.

    A tie is a label that the reference itself scores within `tie` of its best one.
    """
    chosen = reference[np.arange(len(reference)), candidate.argmax(axis=1)]
    with np.errstate(invalid="ignore"):
        agreed: Flags = reference.max(axis=1) - chosen <= tie
    return _judged(agreed, reference, candidate)


def decision_agreements(reference: Floats, candidate: Floats, tie: float) -> Floats:
    """Per logit, 1.0 where both are on the same side of zero or the reference is within `tie` of it, else 0.0."""
    a, b = reference.reshape(-1, 1), candidate.reshape(-1, 1)
    agreed = np.equal(a > 0, b > 0) | (np.abs(a) <= tie)
    return _judged(agreed[:, 0], a, b)


def order_agreements(reference: Floats, candidate: Floats, tie: float) -> Floats:
    """Per pair of rows, 1.0 where both put them in the same order or the reference within `tie`, else 0.0.

    Equal scores do not keep an order: a constant output agrees with nothing.
    """
    left, right = np.triu_indices(len(reference), k=1)
    with np.errstate(invalid="ignore"):
        expected = reference[left] - reference[right]
        given = candidate[left] - candidate[right]
        agreed = (expected * given > 0) | (np.abs(expected) <= tie)
    judged = np.where(np.isfinite(expected) & np.isfinite(given), agreed.astype(np.float64), np.nan)
    return judged.reshape(-1)


def best_span(start: Floats, end: Floats, longest: int = LONGEST_SPAN) -> tuple[int, int]:
    """First and last token of the span with the highest sum of logits."""
    size = len(start)
    first, last = np.indices((size, size))
    allowed = (last >= first) & (last - first < longest)
    totals = np.where(allowed, start[:, None] + end[None, :], -np.inf)
    index = int(totals.argmax())
    return index // size, index % size


def span_agreement(reference: tuple[Floats, Floats], candidate: tuple[Floats, Floats], tie: float) -> float:
    """1.0 where the reference scores the candidate's best span within `tie` of its own best one, else 0.0."""
    if not all(np.isfinite(logits).all() for logits in (*reference, *candidate)):
        return float("nan")
    start, end = reference
    first, last = best_span(start, end)
    given_first, given_last = best_span(*candidate)
    regret = (start[first] + end[last]) - (start[given_first] + end[given_last])
    return float(regret <= tie)


def cosine_distances(reference: Floats, candidate: Floats) -> Floats:
    """1 - cosine per row, exactly nought for equal rows; NaN for a row of zeros, which has no direction."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (reference, candidate))
        distances: Floats = np.square(a - b).sum(axis=1) / 2
    return distances


def labels_differ(reference: Floats, candidate: Floats) -> Floats:
    """Per row of logits, 1.0 where the best label is another one, else 0.0; no tie is forgiven."""
    differ: Flags = reference.argmax(axis=1) != candidate.argmax(axis=1)
    return _judged(differ, reference, candidate)


def decisions_differ(reference: Floats, candidate: Floats) -> Floats:
    """Per row of logits, 1.0 where any of them is on the other side of zero, else 0.0."""
    differ: Flags = ((reference > 0) != (candidate > 0)).any(axis=1)
    return _judged(differ, reference, candidate)


def relevances(logits: Floats) -> Floats:
    """One score per row: its logit, or the log odds of the last label, which orders as its softmax does."""
    if logits.shape[1] == 1:
        return logits[:, 0]
    with np.errstate(invalid="ignore"):
        score: Floats = logits[:, -1] - np.logaddexp.reduce(logits[:, :-1], axis=1)
    return score


def order_disagreement(reference: Floats, candidate: Floats) -> float:
    """Share of the pairs that the reference orders and the candidate does not order so; equal scores order nothing."""
    if not (np.isfinite(reference).all() and np.isfinite(candidate).all()):
        return float("nan")
    wrong = total = 0
    for row in range(len(reference) - 1):
        expected = reference[row] - reference[row + 1 :]
        agreed = np.sign(expected) == np.sign(candidate[row] - candidate[row + 1 :])
        wrong += int((~agreed & (expected != 0)).sum())
        total += int((expected != 0).sum())
    return wrong / total if total else float("nan")


def nearest_disagreements(reference: Floats, candidate: Floats, firsts: Ids, seconds: Ids) -> Floats:
    """Per pair, 1.0 where the second text nearest to its first one is another than the reference's, else 0.0.

    Second texts that the reference itself puts equally near, repeated ones above all, are the same one.
    """
    values = np.empty(len(firsts))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        sides = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (reference, candidate)]
        for start in range(0, len(firsts), BLOCK):
            rows = firsts[start : start + BLOCK]
            expected, given = (side[rows] @ side[seconds].T for side in sides)
            chosen = expected[np.arange(len(rows)), given.argmax(axis=1)]
            differ: Flags = expected.max(axis=1) - chosen > EQUALLY_NEAR
            values[start : start + BLOCK] = _judged(differ, expected, given)
    return values


def _judged(agreed: Flags, reference: Floats, candidate: Floats) -> Floats:
    """`agreed` as numbers, NaN where a row of either side is not finite: argmax has an answer even then."""
    finite = np.isfinite(reference).all(axis=1) & np.isfinite(candidate).all(axis=1)
    return np.where(finite, agreed.astype(np.float64), np.nan)
