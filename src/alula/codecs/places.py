"""Where the tokens of a prompt with images are, on the four axes that HunyuanOCR's language model turns by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from alula.core.errors import InputError

Places: TypeAlias = NDArray[np.int64]

AXES = 4
"""In this order: in the sequence, across, down, which image."""


def places_of(ids: Sequence[int], image: int, grids: Sequence[tuple[int, int]]) -> Places:
    """Places of every token of one prompt, [axes, length]; `grids` are the rows and columns of each image's squares.

    Text, and the token that begins or ends an image, have their place in the sequence on every axis. What is between
    has its column, that which ends a row included, its row, and the number of its image in this prompt, from 0:
    sequences side by side each count their own. Refuses a prompt whose places for images are not those of the grids.
    """
    places = np.tile(np.arange(len(ids), dtype=np.int64), (AXES, 1))
    spans = list(_spans(ids, image))
    if len(spans) != len(grids):
        raise InputError(f"the prompt has places for {len(spans)} images; {len(grids)} are given")
    for number, ((begin, end), (rows, columns)) in enumerate(zip(spans, grids, strict=True)):
        wide = columns + 1
        if end - begin != rows * wide + 2:
            raise InputError(
                f"image {number} has {rows} x {columns} squares, {rows * wide + 2} tokens; the prompt has "
                f"{end - begin} places for it"
            )
        squares = np.arange(rows * wide)
        places[1:, begin + 1 : end - 1] = squares % wide, squares // wide, np.full(rows * wide, number)
    return places


def _spans(ids: Sequence[int], image: int) -> Iterator[tuple[int, int]]:
    """Where places for one image begin and end."""
    for found, group in groupby(range(len(ids)), lambda at: ids[at] == image):
        if found:
            first, *rest = group
            yield first, (rest[-1] if rest else first) + 1
