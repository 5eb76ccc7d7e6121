"""How probable its own words were to the model that wrote them: what it guesses looks as sound as what it reads."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from alula.documents import Notice
from alula.generate import Piece

LEAST_MEAN = 0.7
"""Of a page's tokens, as their geometric mean."""

LEAST_OF_FIELD = 0.5
"""Of every token of a field's value."""


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
        found, start = 0.0, 0
        for until, log in self._least:
            if start < end and until > begin:
                found = min(found, log)
            start = until
        return math.exp(found)


def unsure(text: str, odds: Odds, fields: Mapping[str, Any] | None = None) -> Iterator[Notice]:
    """What the model guessed: a page as a whole, or values of fields. Pure."""
    if odds.mean is not None and odds.mean < LEAST_MEAN:
        said = f"the model was unsure of what it wrote: its tokens have a probability of {odds.mean:.2f} in the mean"
        yield Notice(code="unsure", message=said)
    values = [(name, value_in(text, name)) for name, value in (fields or {}).items() if value]
    guessed = [
        f"{name} ({least:.2f})"
        for name, place in values
        if place is not None and (least := odds.least(*place)) < LEAST_OF_FIELD
    ]
    if guessed:
        said = f"the model was unsure of fields (the least probability of a token): {', '.join(guessed)}"
        yield Notice(code="unsure", message=said)


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
