"""How probable its own words were to the model that wrote them: what it guesses looks as sound as what it reads."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from alula.core.listing import some
from alula.documents import Notice
from alula.generate import Piece
from alula.ocr.spotting import CORNERS

LEAST_MEAN = 0.7
"""Of a page's tokens, as their geometric mean."""

LEAST_OF_FIELD = 0.5
"""Of every token of a field's value."""

LEAST_OF_WORD = 0.6
"""Of every token of what is no field: where lines look alike, a model that jumps to another one is less sure of the
first token there, and sure of all that follow."""

LEAST_OF_DIGIT = 0.8
"""Of every token with a digit, whatever it is in: nothing around a number tells that one of its digits is wrong."""

_AROUND = 16


@dataclass(slots=True)
class Odds:
    """Follows one answer as it is written, where its request asked for probabilities."""

    logs: list[float] = field(default_factory=list)
    _least: list[tuple[int, float]] = field(default_factory=list)
    _pending: float = 0.0

    def push(self, piece: Piece, length: int) -> None:
        """Take in the tokens of a piece, with which the answer has `length` characters."""
        logs = [token.logprob for token in piece.tokens if token.logprob is not None]
        self.logs += logs
        self._pending = min([self._pending, *logs])
        if piece.text:
            self._least.append((length, self._pending))
            self._pending = 0.0

    @property
    def mean(self) -> float | None:
        """The geometric mean of all tokens' probabilities; None where none is known."""
        return math.exp(sum(self.logs) / len(self.logs)) if self.logs else None

    def least(self, begin: int, end: int) -> float:
        """The least probability of a token that wrote one of these characters; 1 where none is known."""
        return min((least for *_, least in self.places(begin, end)), default=1.0)

    def places(self, begin: int = 0, end: float = math.inf) -> Iterator[tuple[int, int, float]]:
        """Where each piece begins and ends that has characters there, and the least probability of its tokens."""
        start = 0
        for until, log in self._least:
            if start < end and until > begin:
                yield start, until, math.exp(log)
            start = until


def unsure(text: str, odds: Odds, fields: Mapping[str, Any] | None = None) -> Iterator[Notice]:
    """What the model guessed: a page as a whole, or values of fields, or else words. Pure."""
    if odds.mean is not None and odds.mean < LEAST_MEAN:
        said = f"the model was unsure of what it wrote: its tokens have a probability of {odds.mean:.2f} in the mean"
        yield Notice(code="unsure", message=said)
    elif fields is None and (
        words := [f"{word!r} ({least:.2f})" for word, least in guessed_words(text, odds)]
    ):
        said = f"the model was unsure of words (the least probability of a token): {some(words)}"
        yield Notice(code="unsure", message=said)
    values = [(name, value_in(text, name)) for name, value in (fields or {}).items() if value]
    guessed = [
        f"{name} ({odds.least(*place):.2f})"
        for name, place in values
        if place is not None and _guessed(text, odds, *place)
    ]
    if guessed:
        said = f"the model was unsure of fields (the least probability of a token): {', '.join(guessed)}"
        yield Notice(code="unsure", message=said)


def guessed_words(text: str, odds: Odds) -> Iterator[tuple[str, float]]:
    """Words that have a token of too low a probability, and the least of theirs; corners of boxes are none. Pure."""
    words = CORNERS.sub(lambda found: " " * len(found[0]), text)
    last = 0
    for begin, end, least in odds.places():
        in_corners = not words[begin:end].strip() and text[begin:end].strip()
        if least >= _limit(text[begin:end], LEAST_OF_WORD) or begin < last or in_corners:
            continue
        first, last = _word_at(words, begin, end)
        yield words[first:last].strip(), odds.least(first, last)


def _guessed(text: str, odds: Odds, begin: int, end: int) -> bool:
    """Whether a token of a value has too low a probability."""
    return any(
        least < _limit(text[first:last], LEAST_OF_FIELD) for first, last, least in odds.places(begin, end)
    )


def _limit(piece: str, usual: float) -> float:
    return LEAST_OF_DIGIT if any(map(str.isdigit, piece)) else usual


def _word_at(text: str, begin: int, end: int) -> tuple[int, int]:
    """Where the word begins and ends of which these characters are a part; scripts without blanks have a few beside."""
    while begin < end - 1 and text[begin].isspace():
        begin += 1
    while begin < end - 1 and text[end - 1].isspace():
        end -= 1
    before = re.search(r"[^\s<>]*$", text[max(0, begin - _AROUND) : begin])
    after = re.match(r"[^\s<>]*", text[end : end + _AROUND])
    assert before is not None, "it may be empty"
    assert after is not None, "likewise"
    return begin - len(before[0]), end + len(after[0])


def value_in(text: str, name: str) -> tuple[int, int] | None:
    """Where the value of a field begins and ends in JSON that was written; None where it is not found. Pure."""
    found = re.search(rf"{re.escape(json.dumps(name, ensure_ascii=False))}\s*:\s*", text)
    if found is None:
        return None
    try:
        _, end = json.JSONDecoder().raw_decode(text, found.end())
    except ValueError:
        return None
    return found.end(), end
