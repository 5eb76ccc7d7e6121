"""Whether as many rows were written as are printed: a model that counts wrong where rows are alike is sure of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from alula.documents import Notice, Pixels, Task, printed
from alula.documents.quality import height_of, skew_of
from alula.documents.tables import parts

_TASKS: tuple[Task, ...] = ("text", "table", "document")
_ROW = re.compile(r"<tr\b[^<>]*>?")
_TAG = re.compile(r"<[^<>]*>?")

_INK, _LOW, _HIGH = 0.1, 0.35, 3.0
"""Of the letters' height: the pixels of ink that a row of pixels of a line has, and how high a line is."""

_APART = 1.2
"""By how much lines may differ in the width of a letter, in the mean of all of a line; a title may have larger type."""

_TITLE = 2.6
_WIDEST = 0.95
"""Of the letters' height, the width of one: 0.51 to 0.86 on 43 held pages."""

_WIDE, _WIDTH = 0x2E80, 1.8
"""From this character on scripts are Chinese and its like, whose signs are as wide as so many letters."""

_GAP = 1.5
"""Of the letters' height, the least between two cells: between words are 0.6 at most, between cells 2 and more."""


class Row(NamedTuple):
    """A row of print: how many columns of pixels have some, and the widest gap between two of them."""

    inked: int
    gap: float


class Rows(NamedTuple):
    """The rows of a page from the top, and the height of its letters."""

    rows: list[Row]
    height: float


def miscounted(pixels: Pixels, text: str, task: Task) -> Iterator[Notice]:
    """Other rows in an answer than on its page (height, width, colour), where both can be counted. Pure.

    Pictures have rows, too: ask it only of pages that are nothing but print.
    """
    said = lengths_in(text)
    if task not in _TASKS or not said:
        return
    ink = printed(pixels)
    there = printed_rows(ink)
    if not _fits(there, said, task):
        there = printed_rows(ink, degrees=skew_of(ink) or 0.0)  # which takes as long as all else
    if there is None or _fits(there, said, task):
        return
    printed_there = len(there.rows)
    how = "some are made up" if len(said) > printed_there else "some are missing, or written as one"
    yield Notice(
        code="miscounted", message=f"{printed_there} rows are printed and {len(said)} were written: {how}"
    )


def _fits(there: Rows | None, said: Sequence[float], task: Task) -> bool:
    """Whether an answer has the rows of its page, but for those that it need not have."""
    if there is None:
        return False
    left_out = len(there.rows) - len(said)
    if left_out > 0 and task == "text":
        return are_joined([row.inked for row in there.rows], said, there.height)
    if left_out == 1 and task == "table":
        return there.rows[0].gap < _GAP * there.height  # a line above the table
    return left_out == 0 or (left_out > 0 and task == "document")


def lengths_in(text: str) -> list[float]:
    """Of lines, and of rows of tables: letters, in which blanks do not count."""
    rows = (
        row
        for part, is_table in parts(text)
        for row in (_ROW.split(part)[1:] if is_table else part.splitlines())
        if is_table or row.strip()
    )
    return [sum(_width(letter) for letter in _TAG.sub("", row) if not letter.isspace()) for row in rows]


def _width(letter: str) -> float:
    return _WIDTH if ord(letter) >= _WIDE else 1.0


def are_joined(there: Sequence[int], said: Sequence[float], height: float) -> bool:
    """Whether lines of these lengths are rows of these widths, in order, several written as one where they go on. Pure.

    A line that was left out makes one of the others too short for the rows that are left to it, and every second one
    makes letters too wide for their `height`.
    """
    ends = list(accumulate(there, initial=0))
    letter = ends[-1] / max(sum(said), 1.0)
    reached = {0} if letter <= _WIDEST * height else set()
    for length in said:
        reached = {
            end
            for begin in reached
            for end in range(begin + 1, len(ends))
            if _is_as_long(ends[end] - ends[begin], letter * length, title=end == 1)
        }
    return len(there) in reached


def _is_as_long(width: float, expected: float, *, title: bool) -> bool:
    return expected <= _APART * width and width <= (_TITLE if title else _APART) * expected


def printed_rows(ink: NDArray[np.bool_], *, degrees: float = 0.0) -> Rows | None:
    """Rows of print in ink (height, width) that run down to the right; None where they run into one another. Pure."""
    height = height_of(ink)
    if height is None:
        return None
    ys, xs = ink.nonzero()
    level = np.round(ys - xs * math.tan(math.radians(degrees))).astype(np.int64)
    level -= level.min()
    inked = np.bincount(level) >= max(2.0, _INK * height)
    edges = np.diff(np.pad(inked, 1).astype(np.int8))
    tops, bottoms = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    high = bottoms - tops >= _LOW * height
    tops, bottoms = tops[high], bottoms[high]
    if (bottoms - tops > _HIGH * height).any():
        return None
    row = np.searchsorted(tops, level, "right") - 1
    within = (row >= 0) & (level < bottoms[row])
    columns = [np.unique(xs[within & (row == at)]) for at in range(len(tops))]
    return Rows([Row(len(each), float(np.diff(each).max(initial=0))) for each in columns], height)
