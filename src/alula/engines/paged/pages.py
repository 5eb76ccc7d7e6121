"""Who holds which pages of a cache, and a step of ragged chunks as one row of tokens. Pure: no engine is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from alula.core.decoding import IMAGE_ROWS, Room, Work
from alula.core.errors import RunError
from alula.core.tensor import Feeds

Ints = npt.NDArray[np.integer[Any]]

TOKENS = ("input_ids", "position_ids", IMAGE_ROWS)
"""Inputs of a step that say something of each of its tokens, which are their last axis but one."""


@dataclass(slots=True)
class _Held:
    """What the cache has of a sequence: so many tokens, in these pages."""

    tokens: int = 0
    pages: list[int] = field(default_factory=list)


class Pages:
    """The pages of a cache, handed out to sequences as they grow and taken back when they are released.

    The room is the caller's, in blocks of any size; a page has as many tokens as the engine says. The last page is
    nobody's: for rows that a step is filled up with.
    """

    def __init__(self, room: Room, page_tokens: int, longest: int) -> None:
        self.room = room
        self.page_tokens = page_tokens
        self.longest = longest
        self.nobodys = pages_for(room, page_tokens)
        # Handed out from the end: what was let go last is in the processor's cache still.
        self._free = list(range(self.nobodys))
        self._held: dict[int, _Held] = {}
        self._lost: set[int] = set()

    @property
    def count(self) -> int:
        """How many pages the cache has."""
        return self.nobodys + 1

    @property
    def free(self) -> int:
        """How many pages nobody holds."""
        return len(self._free)

    def start(self, sequence: int) -> None:
        """Know a sequence, which holds nothing yet."""
        if sequence in self._held or sequence in self._lost:
            raise RunError(f"sequence {sequence} was started already")
        if len(self._held) + len(self._lost) >= self.room.sequences:
            raise RunError(f"sequence {sequence} is one too many; there is room for {self.room.sequences}")
        self._held[sequence] = _Held()

    def release(self, sequence: int) -> None:
        """Take back what a sequence holds; one that is not here holds nothing."""
        self._lost.discard(sequence)
        held = self._held.pop(sequence, None)
        if held is not None:
            self._free += held.pages

    def lose(self, sequences: Sequence[int]) -> None:
        """After an error: these hold nothing any more, and take a place until they are released."""
        for sequence in sequences:
            self.release(sequence)
            self._lost.add(sequence)

    def pack(self, work: Sequence[Work]) -> Feeds:
        """The step as the engine takes it, with pages for all its tokens; refused whole, before any is handed out."""
        self._admit(work)
        chunks = [(self._held[each.sequence], each) for each in work]
        past = [held.tokens for held, _ in chunks]
        for held, each in chunks:
            held.tokens += len(each.tokens)
            while len(held.pages) * self.page_tokens < held.tokens:
                held.pages.append(self._free.pop())
        ends = np.cumsum([0, *(len(each.tokens) for _, each in chunks)], dtype=np.int32)
        answers = [end - 1 for end, (_, each) in zip(ends[1:].tolist(), chunks, strict=True) if each.answers]
        places = chain.from_iterable(
            range(at, held.tokens) for at, (held, _) in zip(past, chunks, strict=True)
        )
        return {
            "input_ids": _column(chain.from_iterable(each.tokens for _, each in chunks)),
            "position_ids": _column(places),
            # Where nobody answers, one does all the same: products of no rows are not every kernel's.
            "answers": np.array(answers or [0], np.int64),
            "past_lens": np.array(past, np.int32),
            "subsequence_begins": ends,
            "block_indices": np.array([page for held, _ in chunks for page in held.pages], np.int32),
            "block_indices_begins": np.cumsum([0, *(len(held.pages) for held, _ in chunks)], dtype=np.int32),
            "max_context_len": np.array(max(held.tokens for held, _ in chunks), np.int32),
        }

    def _admit(self, work: Sequence[Work]) -> None:
        new = {each.sequence: len(each.tokens) for each in work}
        assert new, "a step without work"
        assert len(new) == len(work), "a sequence is named twice"
        assert all(new.values()), "a sequence has no tokens to run"
        for sequence, tokens in new.items():
            if sequence in self._lost:
                raise RunError(f"sequence {sequence} was lost in an error; release it and start it again")
            if sequence not in self._held:
                raise RunError(f"sequence {sequence} was not started")
            if (length := self._held[sequence].tokens + tokens) > self.longest:
                raise RunError(
                    f"sequence {sequence} would hold {length} tokens; the decoder takes {self.longest} at most"
                )
        blocks = sum(
            -(-(held.tokens + new.get(sequence, 0)) // self.room.block_tokens)
            for sequence, held in self._held.items()
        )
        if blocks > self.room.blocks:
            raise RunError(
                f"the step takes {blocks} blocks of the cache; there is room for {self.room.blocks}"
            )


def filled(feeds: Feeds, rows: int, page: int) -> Feeds:
    """A step of one token for each sequence as one of so many rows: those behind have a token each, in this page."""
    missing = rows - len(feeds["past_lens"])
    if not missing and len(feeds["answers"]) == rows:
        return feeds
    ends = np.arange(1, missing + 1)
    behind: dict[str, Ints] = {
        name: np.zeros((*feeds[name].shape[:-2], missing, 1), np.int64) for name in TOKENS if name in feeds
    }
    behind |= {name: feeds[name][-1] + ends for name in ("subsequence_begins", "block_indices_begins")}
    behind["past_lens"], behind["block_indices"] = np.zeros_like(ends), np.full_like(ends, page)
    behind["answers"] = np.zeros(rows - len(feeds["answers"]), np.int64)
    return {
        **feeds,
        **{
            name: np.concatenate([feeds[name], more], axis=max(0, more.ndim - 2), dtype=feeds[name].dtype)
            for name, more in behind.items()
        },
    }


def pages_for(room: Room, page_tokens: int) -> int:
    """How many pages hold whatever the room holds.

    A block of whole pages takes no more of them than it has. Where blocks are cut in pages, the last page of every
    sequence may be begun and not full.
    """
    if room.block_tokens % page_tokens == 0:
        return room.blocks * (room.block_tokens // page_tokens)
    return -(-room.tokens // page_tokens) + room.sequences


def _column(numbers: chain[int]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """[tokens, 1]: a batch of rows that have one token each, whoever's they are."""
    return np.fromiter(numbers, np.int64)[:, None]
