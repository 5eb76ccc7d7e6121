"""Caches of several sequences side by side: rows that end together, and the padding that makes them so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from alula.core.tensor import Feeds
from alula.engines.caches import Caches, Held, Past, stacked

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What a decoder holds of some sequences: arrays [row, head, place, feature], one row for each member.

    `past` is padded on the left to `width` places, `cross` on the right to `source`; `lengths` and `sources` say how
    many of them a row has itself. Of `count` rows those behind the last member repeat the first one.
    """

    members: tuple[int, ...]
    lengths: tuple[int, ...]
    sources: tuple[int, ...]
    width: int
    source: int
    count: int
    past: Past
    cross: Feeds

    def length_of(self, member: int) -> int:
        """How many tokens the cache has of a member."""
        return self.lengths[self.members.index(member)]

    def source_of(self, member: int) -> int:
        """How many tokens the source of a member has."""
        return self.sources[self.members.index(member)]

    def feeds(self, tokens: Ints) -> dict[str, Ints]:
        """What tells the decoder of new tokens, one row for each member: ids, places and what may be seen.

        A token's place is the running sum of its row's mask: padding is neither seen nor counted.
        """
        new = tokens.shape[1]
        lengths = _filled(self.lengths, self.count)[:, None]
        total = self.width + new
        mask = (np.arange(total) >= self.width - lengths).astype(np.int64)
        return {
            "input_ids": np.concatenate([tokens, np.repeat(tokens[:1], self.count - len(tokens), axis=0)]),
            "position_ids": lengths + np.arange(new),
            "attention_mask": mask,
        }

    def source_mask(self) -> Ints:
        """1 where the sources have tokens."""
        return (np.arange(self.source) < _filled(self.sources, self.count)[:, None]).astype(np.int64)

    def grown(self, new: int, past: Past, width: int) -> Rows:
        """The rows with so many tokens more in each, as the decoder gave them back."""
        lengths = tuple(length + new for length in self.lengths)
        return replace(self, lengths=lengths, width=width, past=past)


def side_by_side(
    caches: Caches, picks: Sequence[tuple[Rows, int]], *, width: int, source: int, count: int
) -> Rows:
    """Members of other rows, copied next to each other."""
    places = [(rows, rows.members.index(member)) for rows, member in picks]
    lengths = tuple(rows.lengths[at] for rows, at in places)
    sources = tuple(rows.sources[at] for rows, at in places)
    held = [Held(past=rows.past, row=at, length=rows.lengths[at]) for rows, at in places]
    return Rows(
        members=tuple(member for _, member in picks),
        lengths=lengths,
        sources=sources,
        width=width,
        source=source,
        count=count,
        past=caches.stacked(held, width=width, count=count),
        cross={
            name: stacked(
                [rows.cross[name][at] for rows, at in places], sources, (count, source), right=False
            )
            for name in places[0][0].cross
        },
    )


def _filled(sizes: Sequence[int], count: int) -> Ints:
    """One size for each row of the arrays."""
    return np.array([*sizes, *[sizes[0]] * (count - len(sizes))], np.int64)


def partition(lengths: Sequence[int], *, cells: int, rows: int) -> list[list[int]]:
    """Which rows go side by side, by their indices: in few calls of at most so many rows each.

    A call is padded to its longest row; all of them together have at most so many `cells`, unless the rows alone have
    more. Pure.
    """
    order = sorted(range(len(lengths)), key=lambda at: lengths[at])
    groups = [order[at : at + rows] for at in range(0, len(order), rows)]

    def cost(group: Sequence[int]) -> int:
        return len(group) * lengths[group[-1]]

    while sum(map(cost, groups)) > cells:
        saved, which, cut = max(
            (
                (cost(group) - cost(group[:cut]) - cost(group[cut:]), which, cut)
                for which, group in enumerate(groups)
                for cut in range(1, len(group))
            ),
            default=(0, 0, 0),
        )
        if not saved:
            break
        groups[which : which + 1] = [groups[which][:cut], groups[which][cut:]]
    return groups
