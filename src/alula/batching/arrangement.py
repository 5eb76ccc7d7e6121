"""How rows of several texts become one call of an engine: padded to the longest, or packed. Pure.

Padded, rows of like lengths go together; where a call costs little beside its cells, few rows are as good as many, and
those who are in the batch are answered sooner. Packed, nothing is padded, and those go together that came together; a
long one alone makes rows wide, which costs all that are in them. What holds is said by the costs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from alula.batching.costs import Costs, Shape
from alula.batching.limits import BatchPolicy, Unit
from alula.core.packing import NARROW, cost, lay_out

HOPELESS = 0.85
"""Adding rows ends where a batch has fallen below so much of the best one: the rest are shorter still."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Formed:
    """How wide the rows of a batch are, how many cells they have, and the shape that its cost is known by."""

    longest: int
    cells: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class Batch:
    """What a batch is worth per second, how long it takes, and the first `count` of `places` that are in it."""

    value: float
    seconds: float
    places: list[int]
    count: int

    @property
    def members(self) -> list[int]:
        """The places of the units in it."""
        return self.places[: self.count]


class Arrangement(Protocol):
    """What a batch is and costs; lengths are padded already."""

    good: ClassVar[float]
    """A batch that is worth so much of the best one per second is as good, if it is done sooner."""
    passes: ClassVar[bool]
    """Whether the oldest may be passed for others that go better together."""

    def formed(self, lengths: Sequence[int]) -> Formed:
        """What a batch of rows of these lengths is to the engine."""
        ...

    def row_s(self, length: int) -> float:
        """Seconds that a row costs where it is one of a full batch of its own length."""
        ...

    def together_s(self, lengths: Sequence[int]) -> float:
        """Seconds that rows of these lengths take in one batch."""
        ...

    def batches(self, waiting: Sequence[Unit], firsts: Sequence[int]) -> list[Batch]:
        """Those with one of the units at these places in it, over all lengths that they can be padded to."""
        ...

    def filled(self, members: list[int], waiting: Sequence[Unit]) -> list[int]:
        """With those who fit into what the rows of the batch leave empty: they cost nothing."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Padded:
    """Each row is one text, as long as the longest."""

    policy: BatchPolicy
    costs: Costs
    good: ClassVar[float] = 0.95
    passes: ClassVar[bool] = True

    def formed(self, lengths: Sequence[int]) -> Formed:
        """Rows x longest."""
        longest = max(lengths)
        return Formed(longest=longest, cells=len(lengths) * longest, shape=(len(lengths), longest))

    def row_s(self, length: int) -> float:
        """Of its share in such a batch."""
        return self.costs.row_seconds(length, self.policy.rows(length))

    def together_s(self, lengths: Sequence[int]) -> float:
        """As the shape is known."""
        return self.costs.seconds(len(lengths), max(lengths))

    def batches(self, waiting: Sequence[Unit], firsts: Sequence[int]) -> list[Batch]:
        """For each length the longest rows first."""
        policy = self.policy
        order = sorted(range(len(waiting)), key=lambda at: (-waiting[at].longest, at))
        own = min(waiting[at].longest for at in firsts)
        found: list[Batch] = []
        for length in sorted({unit.longest for unit in waiting if unit.longest >= own}):
            from_here = bisect_left(order, -length, key=lambda at: -waiting[at].longest)
            first = firsts[0] if len(firsts) == 1 else order[from_here]
            places = [first, *(at for at in order[from_here:] if at != first)]
            if not policy.mixed:
                places = [at for at in places if waiting[at].longest == length]
            if places[0] == first and waiting[first].rows <= policy.rows(length):
                found += _growing(
                    [(waiting[at], at) for at in places],
                    policy.rows(length),
                    lambda rows, _, length=length: self.costs.seconds(rows, length),  # type: ignore[misc]
                )
        return found

    def filled(self, members: list[int], waiting: Sequence[Unit]) -> list[int]:
        """Nothing is empty but what pads a row."""
        return members


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """The engine lays texts out in rows by itself; whoever go together, they cost about the same."""

    policy: BatchPolicy
    costs: Costs
    good: ClassVar[float] = (
        0.985  # a batch costs more than its engine is seen to take, more rows leave less empty
    )
    passes: ClassVar[bool] = False

    def formed(self, lengths: Sequence[int]) -> Formed:
        """The rows of the layout; all layouts that cost the same are one shape."""
        layout = lay_out(lengths)
        cells = len(layout.rows) * layout.width
        return Formed(longest=layout.width, cells=cells, shape=(1, round(layout.cost)))

    def row_s(self, length: int) -> float:
        """Of its share in rows of its own width."""
        return self.costs.row_seconds(cost(length, max(length, NARROW)), self.policy.rows(length))

    def together_s(self, lengths: Sequence[int]) -> float:
        """As though rows were full."""
        return self.costs.row_seconds(cost(sum(lengths), max(NARROW, *lengths)), 1)

    def batches(self, waiting: Sequence[Unit], firsts: Sequence[int]) -> list[Batch]:
        """For each width of a row: of narrow ones the oldest first, else the longest.

        What a layout leaves empty is not known before it is made, and little.
        """
        own = max(NARROW, min(waiting[at].longest for at in firsts))
        found: list[Batch] = []
        for width in sorted({own, *(unit.longest for unit in waiting if unit.longest > own)}):
            places = [at for at, unit in enumerate(waiting) if unit.longest <= width]
            if width > NARROW:
                places.sort(key=lambda at: (-waiting[at].longest, at))
            first = firsts[0] if len(firsts) == 1 else places[0]
            places = [first, *(at for at in places if at != first)]
            if waiting[first].rows <= self.policy.rows(width):
                found += _growing(
                    [(waiting[at], at) for at in places],
                    self.policy.rows(width),
                    lambda _, tokens, width=width: self.costs.row_seconds(cost(tokens, width), 1),  # type: ignore[misc]
                )
        return found

    def filled(self, members: list[int], waiting: Sequence[Unit]) -> list[int]:
        """The oldest first, each in the row that it leaves least room in; lists stay as they were packed."""
        if any(waiting[at].rows > 1 for at in members):
            return members
        lengths = [waiting[at].tokens for at in members]
        layout = lay_out(lengths)
        room = [layout.width - sum(lengths[at] for at in row) for row in layout.rows]
        found, taken = list(members), set(members)
        for at, unit in enumerate(waiting):
            fitting = [row for row, left in enumerate(room) if left >= unit.tokens]
            if len(found) >= self.policy.rows(layout.width):
                break
            if fitting and at not in taken and unit.rows == 1:
                room[min(fitting, key=room.__getitem__)] -= unit.tokens
                found.append(at)
        return found


def arranged(policy: BatchPolicy, costs: Costs) -> Arrangement:
    """How an engine of this policy has its rows."""
    kind = Packed if policy.packed else Padded
    return kind(policy=policy, costs=costs)


def _growing(
    units: Sequence[tuple[Unit, int]], room: int, seconds_of: Callable[[int, int], float]
) -> list[Batch]:
    """Batches of at most so many rows: the first unit, and ever more of the others, by their places.

    `seconds_of` says what so many rows with so many tokens take.
    """
    rows, tokens, value, best = 0, 0, 0.0, 0.0
    places: list[int] = []
    found: list[Batch] = []
    for unit, at in units:
        if rows + unit.rows > room:
            continue
        rows, tokens, value = rows + unit.rows, tokens + unit.tokens, value + unit.worth
        places.append(at)
        seconds = seconds_of(rows, tokens)
        found.append(Batch(value / seconds, seconds, places, len(places)))
        best = max(best, value / seconds)
        if value / seconds < HOPELESS * best or rows == room:
            break
    return found
