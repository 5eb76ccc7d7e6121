"""Subtitles of a video: equal pictures read once, lines that stay joined to one, with the time they are seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from difflib import SequenceMatcher

import numpy as np
from numpy.typing import NDArray

from alula.documents import Page, Scan, Task
from alula.ocr.pool import Taken
from alula.ocr.reader import Ask, Reader

ALIKE = 0.8
"""How much of two texts must be equal, in order, to be one subtitle read twice."""

LOWER = 0.6
"""Subtitles stand below this share of a picture's height."""

_STILL_LEVELS = 12
_STILL_CELLS = 0.001
_CELL = 8


def still(found: Iterable[Taken]) -> Iterator[Taken]:
    """Pictures of a video that look like the one before are left out, and that one stands for their time too. Lazy.

    One looks like another when hardly a cell of 8 x 8 pixels differs by 12 levels of 255 in its mean. What is no
    picture of a video passes.
    """
    held: Scan | None = None
    for one in found:
        if held is not None and isinstance(one, Scan) and _look_alike(held, one):
            assert held.span is not None
            assert one.span is not None
            # What is shown again because the video has ended is not seen any longer, and says so once.
            until = held.span[1] if one.notices else one.span[1]
            held = replace(held, span=(held.span[0], until), notices=one.notices or held.notices)
            continue
        if held is not None:
            yield held
        held = one if isinstance(one, Scan) and one.span is not None else None
        if held is None:
            yield one
    if held is not None:
        yield held


def joined(pages: Iterable[Page], *, gap_s: float) -> Iterator[Page]:
    """One page for each subtitle, counted from 0; pictures without text end it, unless no longer than `gap_s`. Lazy.

    Of the ways that one subtitle was read, the one seen longest is its text.
    """
    count, group = 0, list[Page]()
    for page in pages:
        if group and not _goes_on(group, page, gap_s):
            yield _one(group, count)
            count, group = count + 1, []
        if page.text.strip():
            group.append(page)
    if group:
        yield _one(group, count)


class SubtitleReader:
    """A reader of places that has no task for subtitles: they are the lines in the lower part of a picture."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.name = reader.name
        self.tasks: Collection[Task] = {*reader.tasks, "subtitle"}

    def read(self, scans: Iterable[Scan], ask: Ask) -> Iterator[Page]:
        """One page for each scan, in their order."""
        if ask.task != "subtitle":
            return self._reader.read(scans, ask)
        asked = Ask(task="spotting", language=ask.language, max_tokens=ask.max_tokens)
        return map(_lower, self._reader.read(scans, asked))

    def close(self) -> None:
        """Release the reader. Safe to call twice."""
        self._reader.close()


def with_subtitles(reader: Reader) -> Reader:
    """The reader, or one that finds subtitles by their places where it has no task for them."""
    if "subtitle" in reader.tasks or "spotting" not in reader.tasks:
        return reader
    return SubtitleReader(reader)


def _lower(page: Page) -> Page:
    """The page with the lines in its lower part."""
    least = LOWER * page.height
    blocks = tuple(
        block
        for block in page.blocks
        if block.box is not None and sum(y for _, y in block.box) / len(block.box) >= least
    )
    return replace(page, blocks=blocks, text="\n".join(block.text for block in blocks))


def _look_alike(one: Scan, other: Scan) -> bool:
    if one.source != other.source or one.pixels.shape != other.pixels.shape or None in {one.span, other.span}:
        return False
    differing = np.abs(_cells(one) - _cells(other)) > _STILL_LEVELS
    return bool(differing.mean() <= _STILL_CELLS)


def _cells(scan: Scan) -> NDArray[np.float32]:
    """The mean level of each cell, green alone: it makes up most of what is seen."""
    green = scan.pixels[..., 1]
    cell = _CELL if min(green.shape) >= _CELL else 1
    height, width = (side // cell * cell for side in green.shape)
    parts = green[:height, :width].reshape(height // cell, cell, width // cell, cell)
    return np.asarray(parts.mean(axis=(1, 3), dtype=np.float32))


def _goes_on(group: list[Page], page: Page, gap_s: float) -> bool:
    last = group[-1]
    begun = page.span[0] if page.span else 0.0
    if begun - (last.span[1] if last.span else 0.0) > gap_s + 1e-6:
        return False
    return not page.text.strip() or any(alike(one.text, page.text) for one in group[-3:])


def alike(one: str, other: str) -> bool:
    """Whether two texts are one subtitle read twice. Pure."""
    first, second = " ".join(one.split()).casefold(), " ".join(other.split()).casefold()
    if first == second:
        return True
    # What is short differs in meaning by a letter: "10" is no "16".
    if min(len(first), len(second)) < 5:
        return False
    return SequenceMatcher(None, first, second, autojunk=False).ratio() >= ALIKE


def _one(group: list[Page], index: int) -> Page:
    seen: Counter[str] = Counter()
    for page in group:
        seen[page.text] += round(1000 * (page.span[1] - page.span[0])) if page.span else 1
    text, _ = seen.most_common(1)[0]
    best = next(page for page in group if page.text == text)
    begin = group[0].span[0] if group[0].span else 0.0
    end = group[-1].span[1] if group[-1].span else 0.0
    return replace(best, index=index, span=(begin, end))
