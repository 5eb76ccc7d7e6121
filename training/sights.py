"""Where on its page stands what an answer says: what the decoder is told of where to look."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

from training.canvas import Line
from training.render import Page

CELL = 32
"""Pixels of a page, across and down, that become one token of the language model."""

Sight: TypeAlias = tuple[int, int]
"""The number of a token of the answer, and the square that its character is in, counted with those that end a row."""
Squares: TypeAlias = Sequence[int]
"""The square of every character of a line; -1 for one that is not on the page."""

_TAGS = re.compile(r"</?t\w+>")
_PLACES = re.compile(r"\(\d+,\d+\),\(\d+,\d+\)")
_FILLED = re.compile("<td>[^<]")
_COLON = re.compile("[:：]")
_HIDDEN = "\0"


def sights_of(page: Page) -> list[Sight]:
    """The tokens of the answer that stand on the page as they are said, or as another case of letters."""
    return list(_of_fields(page) if page.task == "fields" else _of_lines(page))


def _of_lines(page: Page) -> Iterator[Sight]:
    """Lines are said one after the other, each as it stands; a page's number and a line above a table are not said."""
    lines = page.lines
    if page.task == "table":
        lines = lines[len(lines) - len(_FILLED.findall(page.answer)) :]
    # A character for each token: letters are one, a tag is one, and coordinates are what they are long.
    said = _PLACES.sub(lambda found: _HIDDEN * len(found[0]), _TAGS.sub(_HIDDEN, page.answer))
    at = 0
    for line in lines:
        first = said.find(line.text, at)
        if first >= 0:
            yield from _seen(first, _squares(page, line))
            at = first + len(line.text)


def _of_fields(page: Page) -> Iterator[Sight]:
    """Fields are said in an order of their own: their names and values stand in the rows that begin with the names."""
    rows: dict[str, Squares] = {}
    for _, row in groupby(page.lines, lambda line: line.row):
        lines = list(row)
        rows[_COLON.split(lines[0].text)[0].lower()] = [
            each for line in lines for each in _squares(page, line)
        ]
    at = len("{")
    for key, value in json.loads(page.answer).items():
        squares = rows.get(key, ())
        yield from _seen(at + len('"'), squares[: len(key)])
        yield from _seen(at + len(f'"{key}": "'), squares[len(squares) - len(value) :])
        at += len(f'"{key}": "{value}", ')


def _seen(first: int, squares: Squares) -> Iterator[Sight]:
    """Tokens from the first one on, but for those that are not on the page."""
    return ((token, square) for token, square in enumerate(squares, first) if square >= 0)


def _squares(page: Page, line: Line) -> Squares:
    width, height = page.shape
    across = width // CELL + 1
    return [
        int(y) // CELL * across + int(x) // CELL if 0 <= x < width and 0 <= y < height else -1
        for x, y in line.middles
    ]
