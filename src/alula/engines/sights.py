"""What sequences see: rows that a vision part made, and where their tokens are. No engine is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from alula.core.decoding import IMAGE, IMAGE_AT, IMAGE_ROWS, PLACES, Work
from alula.core.errors import InputError
from alula.core.tensor import Array, Feeds, TensorSpec

Ints = npt.NDArray[np.int64]
POSITIONS = "position_ids"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sight:
    """Rows [images' tokens, hidden], the tokens of the prompt that they stand for, and the places of all its tokens."""

    rows: Array
    at: Ints
    places: Ints


@dataclass(slots=True)
class Sights:
    """What a decoder that sees is told of each sequence's tokens; a row of zeros where none of them is an image's.

    Positions are [axes, tokens]; behind a prompt a token's place is that in the sequence, on every axis. Rows are let
    go of once all of them have been asked for: 17 MB of a page of 16,384 patches.
    """

    axes: int
    hidden: int
    _held: dict[int, _Sight] = field(default_factory=dict)

    @classmethod
    def of(cls, inputs: Iterable[TensorSpec]) -> Sights | None:
        """Those of a decoder with these inputs; None where it sees nothing."""
        shapes = {spec.name: spec.shape for spec in inputs}
        if IMAGE not in shapes:
            return None
        axes, hidden = shapes[POSITIONS][0], shapes[IMAGE][1]
        if not isinstance(axes, int) or not isinstance(hidden, int):
            raise InputError(f"the decoder takes {POSITIONS} of {axes} axes and {IMAGE} of {hidden} numbers")
        return cls(axes, hidden)

    def start(self, sequence: int, given: Feeds) -> None:
        """Keep what a sequence sees; nothing at all is right too."""
        if not given:
            self._held.pop(sequence, None)
            return
        if set(given) != {IMAGE, IMAGE_AT, PLACES}:
            raise InputError(
                f"a sequence is given {sorted(given)}, expected {sorted((IMAGE, IMAGE_AT, PLACES))}"
            )
        rows = given[IMAGE]
        at, places = (np.asarray(given[name], np.int64) for name in (IMAGE_AT, PLACES))
        if rows.ndim != 2 or rows.shape[1] != self.hidden or len(rows) != len(at):
            raise InputError(
                f"the images are {len(rows)} tokens of the vision part, and the prompt has {len(at)} places for them"
            )
        if places.ndim != 2 or len(places) != self.axes or (len(at) and at[-1] >= places.shape[1]):
            raise InputError(f"{PLACES} is {places.shape}, expected [{self.axes}, tokens of the prompt]")
        self._held[sequence] = _Sight(rows=rows, at=at, places=places)

    def release(self, sequence: int) -> None:
        """Forget what a sequence saw."""
        self._held.pop(sequence, None)

    def positions(self, sequence: int, begin: int, end: int) -> Ints:
        """Places of the tokens from `begin` to `end` of a sequence, [axes, tokens]."""
        counted = np.broadcast_to(np.arange(begin, end, dtype=np.int64), (self.axes, end - begin))
        sight = self._held.get(sequence)
        if sight is None or begin >= sight.places.shape[1]:
            return counted
        known = sight.places[:, begin:end]
        return np.concatenate([known, counted[:, known.shape[1] :]], axis=1)

    def seen(self, spans: Sequence[tuple[int, int, int]]) -> tuple[Array, list[Ints]]:
        """The rows that stand for tokens of some (sequence, begin, end); for each span which do, -1 for none."""
        rows: list[Array] = []
        picks: list[Ints] = []
        count = 0
        for sequence, begin, end in spans:
            pick = np.full(end - begin, -1, np.int64)
            if (sight := self._held.get(sequence)) is not None and len(sight.at):
                first, last = np.searchsorted(sight.at, (begin, end))
                pick[sight.at[first:last] - begin] = np.arange(count, count + last - first)
                rows.append(sight.rows[first:last])
                count += int(last - first)
                if last == len(sight.at):
                    self._held[sequence] = replace(sight, rows=sight.rows[:0], at=sight.at[:0])
            picks.append(pick)
        if not count:
            return np.zeros((1, self.hidden), np.float32), picks
        return np.concatenate(rows), picks

    def flat(self, work: Sequence[Work], lengths: Sequence[int]) -> Feeds:
        """What a step of ragged chunks is told, a token a row; `lengths` are what is held of each sequence before."""
        spans = [
            (each.sequence, length, length + len(each.tokens))
            for each, length in zip(work, lengths, strict=True)
        ]
        rows, picks = self.seen(spans)
        return {
            POSITIONS: np.concatenate([self.positions(*span) for span in spans], axis=1)[..., None],
            IMAGE_ROWS: np.concatenate(picks)[:, None],
            IMAGE: rows,
        }

    def squared(self, members: Sequence[int], lengths: Sequence[int], new: int, count: int) -> Feeds:
        """What rows side by side are told of so many new tokens each; rows behind the members repeat the first one."""
        spans = [(member, length, length + new) for member, length in zip(members, lengths, strict=True)]
        filled = [*range(len(spans)), *[0] * (count - len(spans))]
        rows, picks = self.seen(spans)
        places = [self.positions(*span) for span in spans]
        return {
            POSITIONS: np.stack([places[at] for at in filled], axis=1),
            IMAGE_ROWS: np.stack([picks[at] for at in filled]),
            IMAGE: rows,
        }
