"""How much of a long text has to be read, where only its first tokens are kept. Pure.

A tokenizer takes some fifty bytes for a character, so a text of megabytes is not read whole for its first 512 tokens.
Tokens of a beginning are those of the whole text where their word ends well before the place at which the text was
broken off: what comes after changes how the last words are split, and nothing before them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

MARGIN = 512
"""Words that end within so many characters of the place where the text was broken off may be others in the whole."""
LEAST = 4_000
"""Characters that are read in any case."""
A_TOKEN = 8
"""Characters for each token that the model takes, at first; more where they were not enough."""
MORE = 4
"""... which are so many times as many."""
TWO_LONG = 64_000
"""Characters of two long texts that are read to know which of them has more tokens."""

Read: TypeAlias = tuple[Sequence[int | None], Sequence[int | None], Sequence[tuple[int, int]]]
"""Of each token of what was read: the text that it comes from, its word there, and its characters."""


def lengths_to_read(texts: Sequence[str], limit: int) -> Iterator[int]:
    """How many characters of each text to read, ever more until they are whole."""
    longest, size = max(map(len, texts)), max(LEAST, A_TOKEN * limit)
    while size < longest:
        yield size
        size *= MORE
    yield longest


def suffices(read: Read, texts: Sequence[str], size: int, limit: int) -> bool:
    """Whether so many characters of each text tell the first `limit` tokens of all, and which text has more of them.

    Of two that are both broken off nobody knows the longer one, which may keep a token more: so they are read on, but
    not beyond `TWO_LONG` characters, from where on the one with more tokens up to there counts as the longer one.
    """
    broken = [source for source, text in enumerate(texts) if len(text) > size]
    if not broken:
        return True
    if len(broken) > 1:
        enough = all(settled(read, source, size) >= limit for source in broken)
        return enough and size >= max(TWO_LONG, MORE * A_TOKEN * limit)
    others = sum(found not in (None, broken[0]) for found in read[0])
    return settled(read, broken[0], size) >= max(limit, others + 1)


def settled(read: Read, source: int, size: int) -> int:
    """How many first tokens of a text that was broken off after `size` characters are those of the whole text."""
    of_text = [
        (word, stop)
        for found, word, (_, stop) in zip(*read, strict=True)
        if found == source and word is not None
    ]
    first_open = min((word for word, stop in of_text if stop > size - MARGIN), default=None)
    if first_open is None:  # what follows the last word may belong to it
        first_open = max((word for word, _ in of_text), default=0)
    return sum(word < first_open for word, _ in of_text)
