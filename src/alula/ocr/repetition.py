"""Loops that a model falls into, seen while it writes, and told from what a page repeats itself."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_UNIT = 256
"""Characters that are repeated."""

LEAST_TIMES = 8
"""As in Tencent's own client (`hunyuan_utils.py` of version 1.5)."""

LEAST_CHARACTERS = 1500
"""That repetition takes in all. Eight times alone would end twelve equal rows of a table, the dots of a table of
contents or a sheet of labels; a loop goes on, and has so many after 400 tokens or so."""

LEAST_TIMES_OF_FORMS = 48
"""Of a table's rows and cells, and of what has no letter or digit: pages do have dozens of empty ones."""

CHECKED_EVERY = 128
"""Characters between two looks."""

_MARKS = ("<td", "<tr", "<th", "|")


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """The end of a text, which is one piece again and again: where it begins, the piece, and how many times."""

    start: int
    unit: str
    times: int


class Guard:
    """Follows one answer as it is written."""

    def __init__(self) -> None:
        self.text = ""
        self._checked = 0

    def push(self, piece: str) -> Loop | None:
        """Take in what was written; a loop says that the answer should end here."""
        self.text += piece
        if len(self.text) - self._checked < CHECKED_EVERY:
            return None
        self._checked = len(self.text)
        return loop_at_end(self.text)


def loop_at_end(text: str) -> Loop | None:
    """The loop that a text ends in, with the shortest piece that explains it. Pure.

    The last time may be unfinished. A piece counts when it was written often enough and the whole is long enough.
    """
    if len(text) < LEAST_CHARACTERS:
        return None
    for size in range(1, LONGEST_UNIT + 1):
        # A look at two pieces rules nearly every size out.
        if text[-size:] != text[-2 * size : -size]:
            continue
        covered = _covered(text, size)
        times = covered // size
        unit = text[len(text) - covered : len(text) - covered + size]
        if covered >= LEAST_CHARACTERS and times >= _least_times(unit):
            return Loop(start=len(text) - covered, unit=unit, times=times)
    return None


def without_loop(text: str, loop: Loop) -> str:
    """The text with the piece once."""
    return text[: loop.start] + loop.unit


def _covered(text: str, size: int) -> int:
    """How many characters at the end are equal to the one `size` before, and those that they are equal to."""
    at = len(text) - 1
    while at >= size and text[at] == text[at - size]:
        at -= 1
    return len(text) - 1 - at + size


def _least_times(unit: str) -> int:
    form = any(mark in unit for mark in _MARKS) or not any(character.isalnum() for character in unit)
    return LEAST_TIMES_OF_FORMS if form else LEAST_TIMES
