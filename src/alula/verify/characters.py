"""Lines of characters: what a recogniser's steps spell, and how far two spellings are apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from alula.verify.metrics import Floats

Edits = NDArray[np.int64]
"""Per row, how many characters are wrong and how many there are."""

BLANK = 0
"""The class of a step that gives no character."""


def spelled(steps: Floats, labels: Sequence[str]) -> str | None:
    """The line that [steps, classes] spell: the best class of each step, repeats once, blanks left out.

    None where a value is not finite or the classes are not the labels: argmax has an answer even then.
    """
    if steps.ndim != 2 or steps.shape[1] != len(labels) or not np.isfinite(steps).all():
        return None
    best = steps.argmax(axis=1)
    begins = np.diff(best, prepend=BLANK) != 0
    return "".join(labels[at] for at in best[begins & (best != BLANK)])


def edit_distance(first: str, second: str) -> int:
    """Characters to insert, delete or replace at least to make one of the other (Levenshtein)."""
    if first == second or not (first and second):
        return max(len(first), len(second)) if first != second else 0
    others, places = np.array([*map(ord, second)]), np.arange(len(second) + 1)
    above = places
    for row, one in enumerate(map(ord, first), start=1):
        here = np.minimum(above[1:] + 1, above[:-1] + (others != one))
        # What is inserted costs one a place: the least of what stands before, less its place.
        above = np.minimum.accumulate(np.concatenate([[row], here]) - places) + places
    return int(above[-1])


def edits(wanted: Sequence[str], given: Sequence[str]) -> Edits:
    """Of each line, the distance and the length it is a share of."""
    counts = [(edit_distance(a, b), len(a)) for a, b in zip(wanted, given, strict=True)]
    return np.array(counts, dtype=np.int64).reshape(-1, 2)


def error_rate(counts: Edits) -> float:
    """Wrong characters of all lines per character there is; NaN where there is none."""
    wrong, characters = counts.sum(axis=0)
    return float(wrong / characters) if characters else float("nan")
