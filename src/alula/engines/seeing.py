"""A decoding session that is given images: the vision part reads each by itself when a sequence starts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from alula.core.decoding import IMAGE, IMAGE_AT, NOTHING_GIVEN, PATCHES, PLACES, Decoding, Logits, Room, Work
from alula.core.engine import Session
from alula.core.errors import InputError
from alula.core.tensor import Array, Feeds


class Seeing:
    """Runs images one by one, so that none attends to another, and has the decoder put what comes of them in place.

    A sequence is given "patches.0", "patches.1" and so on, each [down, across, features], "image_at", the tokens of its
    prompt that stand for them, and "places" of all of its tokens; or nothing, where it has no image.
    """

    def __init__(self, vision: Session, decoding: Decoding) -> None:
        self._vision, self._decoding = vision, decoding
        self.room: Room = decoding.room
        self.vocabulary: int = decoding.vocabulary

    def start(self, sequence: int, given: Feeds = NOTHING_GIVEN) -> None:
        """Look at the images of a sequence, and begin it; refuses one that has not a place for each of their tokens."""
        self._decoding.start(sequence, looked(self._vision, given))

    def step(self, work: Sequence[Work]) -> Logits:
        """Run everybody's tokens."""
        return self._decoding.step(work)

    def release(self, sequence: int) -> None:
        """Forget a sequence and what it saw."""
        self._decoding.release(sequence)

    def close(self) -> None:
        """Release both parts."""
        self._decoding.close()
        self._vision.close()


def looked(vision: Session, given: Feeds) -> Feeds:
    """What a decoder is given of a sequence's images, once the vision part has read each of them."""
    if not given:
        return NOTHING_GIVEN
    names = [f"{PATCHES}.{at}" for at in range(len(given) - 2)]
    if not names or set(given) != {*names, IMAGE_AT, PLACES}:
        raise InputError(
            f"a sequence is given {sorted(given)}, expected {PATCHES}.0 and so on, {IMAGE_AT} and {PLACES}"
        )
    rows: list[Array] = [vision.run({PATCHES: given[name]})["embeddings"] for name in names]
    return {IMAGE: np.concatenate(rows), IMAGE_AT: given[IMAGE_AT], PLACES: given[PLACES]}
