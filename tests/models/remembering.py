"""A model without arrays: what comes next depends on every token before, in order, and on what was given at first.

It holds its caller to the book: nothing is run twice, left out, started twice or kept for ever.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from alula.core.decoding import NOTHING_GIVEN, Logits, Room, Work
from alula.core.errors import InputError, RunError
from alula.core.tensor import Feeds

VOCABULARY = 40
END = 0
BROKEN = 39
"""From the third token on, a sequence that begins with it gets NaN."""
UNREADABLE = 38
"""A source of this token is refused."""


def logits(history: Sequence[int], source: Sequence[int] = ()) -> Logits:
    if history[0] == BROKEN and len(history) > 2:
        return np.full(VOCABULARY, np.nan, dtype=np.float32)
    draw = np.random.default_rng(zlib.crc32(bytes([*source, 255, *history])))
    return draw.normal(size=VOCABULARY).astype(np.float32) * 2


class Remembering:
    """A `Decoding` that remembers tokens; it fails in the steps it is told to."""

    vocabulary = VOCABULARY

    def __init__(self, room: Room, *, fails: Sequence[int] = (), error: type[RunError] = RunError) -> None:
        self.room = room
        self.held: dict[int, list[int]] = {}
        self.steps: list[list[Work]] = []
        self.closed = False
        self._sources: dict[int, list[int]] = {}
        self._fails = fails
        self._error = error

    def start(self, sequence: int, given: Feeds = NOTHING_GIVEN) -> None:
        assert sequence not in self.held
        assert len(self.held) < self.room.sequences
        source = np.asarray(given.get("input_ids", []), np.int64).ravel().tolist()
        if UNREADABLE in source:
            raise InputError("the source cannot be read")
        self.held[sequence] = []
        self._sources[sequence] = source

    def step(self, work: Sequence[Work]) -> Logits:
        if self.closed:
            raise RunError("session is closed")
        assert work
        assert len({each.sequence for each in work}) == len(work)
        self.steps.append(list(work))
        if len(self.steps) - 1 in self._fails:
            raise self._error("planted")
        for each in work:
            assert each.tokens
            self.held[each.sequence] += each.tokens
        taken = sum(-(-len(tokens) // self.room.block_tokens) for tokens in self.held.values())
        assert taken <= self.room.blocks
        answers = [
            logits(self.held[each.sequence], self._sources[each.sequence]) for each in work if each.answers
        ]
        return np.stack(answers) if answers else np.empty((0, VOCABULARY), np.float32)

    def release(self, sequence: int) -> None:
        self.held.pop(sequence, None)
        self._sources.pop(sequence, None)

    def close(self) -> None:
        self.closed = True
