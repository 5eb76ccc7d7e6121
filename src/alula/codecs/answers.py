"""Question answering: the logits of one row as spans of the context."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from alula.codecs.entities import stripped
from alula.codecs.rows import SPECIAL, Row
from alula.codecs.scores import Numbers, finite, softmax
from alula.core.errors import InputError
from alula.core.tensor import Feeds

CONTEXT = 1
"""The source of the tokens an answer may come from: the question is the first text, the context the second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A span of the context; `start` and `end` are code points of it."""

    answer: str
    start: int
    end: int
    score: float


def answers(outputs: Feeds, row: Row, context: str, *, count: int = 1, max_tokens: int = 15) -> list[Answer]:
    """The `count` most likely spans of at most `max_tokens` tokens, the best one first; spans do not repeat."""
    if count < 1 or max_tokens < 1:
        raise InputError(f"asked for {count} answers of {max_tokens} tokens; expected at least 1 of each")
    inside = np.array([source == CONTEXT for source in row.sources])
    if not inside.any():
        return []
    scores = _spans(
        _chance(outputs, "start_logits", inside), _chance(outputs, "end_logits", inside), max_tokens
    )
    found: dict[tuple[int, int], Answer] = {}
    possible = np.flatnonzero(scores)
    for flat in possible[np.argsort(-scores.ravel()[possible], kind="stable")]:
        if len(found) == count:
            break
        first, last = divmod(int(flat), scores.shape[1])
        start, end = _characters(row, first, last, context)
        if start < end:
            answer = Answer(answer=context[start:end], start=start, end=end, score=float(scores[first, last]))
            found.setdefault((start, end), answer)
    return list(found.values())


def _chance(outputs: Feeds, name: str, inside: NDArray[np.bool_]) -> Numbers:
    """The chance of every token of the context; the first token ("no answer") takes part in the sum only."""
    logits = finite(outputs, name)
    considered = inside.copy()
    considered[0] = True
    chance = np.zeros_like(logits)
    chance[considered] = softmax(logits[considered])
    chance[~inside] = 0.0
    return chance


def _spans(start: Numbers, end: Numbers, max_tokens: int) -> Numbers:
    """The chance of every span by first and last token; nought where it ends before it starts or is too long."""
    spans: Numbers = np.tril(np.triu(np.outer(start, end)), max_tokens - 1)
    return spans


def _characters(row: Row, first: int, last: int, context: str) -> tuple[int, int]:
    """The span in whole words, as transformers gives it."""
    first, last = _widened(row, first, -1), _widened(row, last, 1)
    return stripped(context, row.offsets[first][0], row.offsets[last][1])


def _widened(row: Row, at: int, step: int) -> int:
    """The outermost token of the word that token `at` belongs to."""
    if row.words[at] == SPECIAL:
        return at
    while 0 <= at + step < len(row.words) and _same_word(row, at, at + step):
        at += step
    return at


def _same_word(row: Row, one: int, other: int) -> bool:
    return row.sources[one] == row.sources[other] and row.words[one] == row.words[other]
