"""Whether as many rows were written as are printed: a model that counts wrong where rows are alike is sure of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from alula.documents import Notice, Pixels, Task, printed
from alula.documents.quality import height_of, skew_of
from alula.documents.tables import parts

_INK, _LOW, _HIGH = 0.1, 0.35, 3.0
"""Of the letters' height: the pixels of ink that a row of pixels of a line has, and how high a line is."""


_LEFT_OUT: Mapping[Task, float] = {"text": 0, "table": 1, "document": math.inf}
"""Rows of a page that an answer need not have: the line above a table, and those that are joined to paragraphs."""


def miscounted(pixels: Pixels, text: str, task: Task) -> Iterator[Notice]:
    """Other rows in an answer than on its page (height, width, colour), where both can be counted. Pure.

    Pictures have rows, too: ask it only of pages that are nothing but print.
    """
    said = written_rows(text)
    if task not in _LEFT_OUT or not said:
        return
    ink = printed(pixels)
    there = printed_rows(ink)
    if not _fits(there, said, task):
        there = printed_rows(ink, degrees=skew_of(ink) or 0.0)  # which takes as long as all else
    if there is None or _fits(there, said, task):
        return
    how = "some are made up" if said > there else "some are missing, or written as one"
    yield Notice(code="miscounted", message=f"{there} rows are printed and {said} were written: {how}")


def _fits(there: int | None, said: int, task: Task) -> bool:
    return there is not None and 0 <= there - said <= _LEFT_OUT[task]


def written_rows(text: str) -> int:
    """Lines, and rows of tables."""
    return sum(
        part.count("<tr") if is_table else sum(bool(line.strip()) for line in part.splitlines())
        for part, is_table in parts(text)
    )


def printed_rows(ink: NDArray[np.bool_], *, degrees: float = 0.0) -> int | None:
    """Rows of print in ink (height, width) that run down to the right; None where they run into one another. Pure."""
    height = height_of(ink)
    if height is None:
        return None
    ys, xs = ink.nonzero()
    level = np.round(ys - xs * math.tan(math.radians(degrees))).astype(np.int64)
    inked = np.bincount(level - level.min()) >= max(2.0, _INK * height)
    edges = np.diff(np.pad(inked, 1).astype(np.int8))
    heights = np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)
    lines = heights[heights >= _LOW * height]
    return None if (lines > _HIGH * height).any() else len(lines)
