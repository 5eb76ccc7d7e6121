"""Which of the waiting requests go into a batch. Pure: no clock, no queue, no engine.

A batch is padded to its longest row, so rows of like lengths go together; where a call costs little beside its cells,
few rows are as good as many, and those who are in the batch are answered sooner. What holds is said by the costs.
Where texts are packed into rows, nothing is padded, and those go together that came together; a long one alone makes
rows wide, which costs all that are in them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from math import inf

from alula.batching.costs import Costs, Shape
from alula.core.errors import InputError
from alula.core.packing import NARROW, cost, lay_out

GOOD = 0.95
"""A batch that is worth so much of the best one per second is as good, if it is done sooner."""
AS_GOOD_PACKED = 0.985
"""The same, packed: a batch costs more than its engine is seen to take, and more rows leave less empty."""
HOPELESS = 0.85
"""Adding rows ends where a batch has fallen below so much of the best one: the rest are shorter still."""
LOOKED_AT = 256
"""Of those who wait, so many of the oldest are looked at for each batch."""
PATIENCE = 3.0
"""The oldest is passed until it has waited so many times as long as all who wait take."""
SHARE = 0.25
"""... or for so much of the time that it has."""
FREE_S = 0.25
"""Seconds of its work that a request has in the queue like any other; beyond that it is a long list, cut into turns."""
LISTS = 2.0
"""The next unit of a long list has its turn so many times the work of the one before after that."""
WHOLE = 1.25
"""A request's rows stay together unless that costs so many times what they cost by length."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPolicy:
    """Limits on one engine call, in rows, cells (rows x padded length) and bytes, and on the queue, in rows and tokens.

    A row has `row_bytes` of its own and `cell_bytes` for each cell; one goes however many it has.
    `steps` are pairs of a length and how many rows an engine takes at once up to it, where it takes fewer long rows.
    `lengths` are those that rows are padded to, ascending; a length beyond the last one is its own. Unless rows may
    be `mixed`, only those of one padded length go together. `packed`, the engine lays texts out in rows by itself.
    """

    max_rows: int = 32
    max_cells: int = 16_384
    max_bytes: int = 268_435_456
    row_bytes: int = 0
    cell_bytes: int = 0
    max_waiting_rows: int = 1_024
    max_waiting_tokens: int = 524_288
    steps: tuple[tuple[int, int], ...] = ()
    lengths: tuple[int, ...] = ()
    mixed: bool = True
    packed: bool = False

    def __post_init__(self) -> None:
        for name in ("max_rows", "max_cells", "max_bytes", "max_waiting_rows", "max_waiting_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected at least 1")

    def rows(self, longest: int) -> int:
        """How many rows go together whose longest has so many tokens; one goes always."""
        beside = max((rows for length, rows in self.steps if length >= longest), default=1)
        most = min(self.max_rows, beside) if self.steps else self.max_rows
        size = max(1, self.row_bytes + self.cell_bytes * longest)
        return max(1, min(most, self.max_cells // max(longest, 1), self.max_bytes // size))

    def padded(self, length: int) -> int:
        """The length that a row of so many tokens is padded to at least."""
        at = bisect_left(self.lengths, length)
        return self.lengths[at] if at < len(self.lengths) else length

    def formed(self, lengths: Sequence[int]) -> Formed:
        """What a batch of rows of these padded lengths is to the engine."""
        if self.packed:
            layout = lay_out(lengths)
            cells = len(layout.rows) * layout.width
            return Formed(longest=layout.width, cells=cells, shape=(1, round(layout.cost)))
        longest = max(lengths)
        return Formed(longest=longest, cells=len(lengths) * longest, shape=(len(lengths), longest))


@dataclass(frozen=True, kw_only=True, slots=True)
class Formed:
    """How wide the rows of a batch are, how many cells they have, and the shape that its cost is known by."""

    longest: int
    cells: int
    shape: Shape


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """What runs together: a row, or several rows of one request.

    `longest` is padded, `worth` the seconds its rows cost in good company; `place` orders those who wait, `deadline` is
    when nobody waits for it any more. Until `turn` others go first: it is one of many of its request. `tokens` are
    those of all its rows.
    """

    rows: int
    longest: int
    worth: float
    place: float
    deadline: float = inf
    turn: float = -inf
    tokens: int = 0


def worth(length: int, policy: BatchPolicy, costs: Costs) -> float:
    """Seconds that a row of this padded length costs where it is one of a full batch of its own length."""
    if policy.packed:
        return costs.row_seconds(cost(length, max(length, NARROW)), policy.rows(length))
    return costs.row_seconds(length, policy.rows(length))


def at_once(worths: Sequence[float]) -> int:
    """How many of a request's units have their turn as soon as it is there, for so many seconds of work in each."""
    return max(1, sum(done <= FREE_S for done in accumulate(worths)))


def next_turn(start: float, work_s: float, lanes: int) -> float:
    """When the next unit of a long list has its turn, after so much of its work began.

    So a list has at most one in `LISTS` of the engine's time while others wait, however long it is, and all of it while
    nobody does.
    """
    return start + LISTS * work_s / lanes


def choose(waiting: Sequence[Unit], start: float, policy: BatchPolicy, costs: Costs) -> list[int]:
    """The places in `waiting`, which is in the order of `place`, of what runs next; `start` is when it does.

    It is the batch that is worth most per second. The oldest unit is in it, unless it came but a short while ago, as
    long as all can be in time; where they cannot, the most urgent of those that most can be. Those that have no turn
    yet are looked at where nobody has.
    """
    due = [at for at, unit in enumerate(waiting) if unit.turn <= start] or list(range(len(waiting)))
    return [due[at] for at in _chosen([waiting[at] for at in due[:LOOKED_AT]], start, policy, costs)]


def _chosen(looked_at: Sequence[Unit], start: float, policy: BatchPolicy, costs: Costs) -> list[int]:
    if not looked_at:
        return []
    slack = _slack(looked_at, start)
    # Packed, nobody is passed: whoever go together, they cost about the same.
    if slack >= 0 and not policy.packed and not _waits_long(looked_at, start):
        batch = _best(looked_at, range(len(looked_at)), policy, costs)
        if batch.seconds <= slack:
            return batch.members
    first = _most_in_time(looked_at, start) if slack < 0 else 0
    members = _best(looked_at, [first], policy, costs, within_s=looked_at[first].deadline - start).members
    return filled(members, looked_at, policy) if policy.packed else members


def filled(members: list[int], looked_at: Sequence[Unit], policy: BatchPolicy) -> list[int]:
    """With those who fit into what the rows of the batch leave empty: they cost nothing."""
    if any(looked_at[at].rows > 1 for at in members):
        return members
    lengths = [looked_at[at].tokens for at in members]
    layout = lay_out(lengths)
    room = [layout.width - sum(lengths[at] for at in row) for row in layout.rows]
    found, taken = list(members), set(members)
    for at, unit in enumerate(looked_at):
        fitting = [row for row, left in enumerate(room) if left >= unit.tokens]
        if len(found) >= policy.rows(layout.width):
            break
        if fitting and at not in taken and unit.rows == 1:
            room[min(fitting, key=room.__getitem__)] -= unit.tokens
            found.append(at)
    return found


def _slack(waiting: Sequence[Unit], start: float) -> float:
    """How much later all could begin to run in their order, and still be in time; negative where not all are."""
    done, slack = start, inf
    for unit in waiting:
        done += unit.worth
        slack = min(slack, unit.deadline - done)
    return slack


def _waits_long(waiting: Sequence[Unit], start: float) -> bool:
    """Whether the oldest unit is to be passed no more, so that nobody waits for ever."""
    oldest = waiting[0]
    backlog = sum(unit.worth for unit in waiting)
    return start - oldest.place >= min(PATIENCE * backlog, SHARE * (oldest.deadline - oldest.place))


def _most_in_time(waiting: Sequence[Unit], start: float) -> int:
    """The most urgent of as many as can be in time.

    By the deadline, leaving out the longest so far whenever one is late: J. M. Moore, "An n job, one machine sequencing
    algorithm for minimizing the number of late jobs", Management Science 15 (1968).
    """
    done = start
    kept: list[tuple[float, int]] = []
    for at in sorted(range(len(waiting)), key=lambda at: (waiting[at].deadline, at)):
        heappush(kept, (-waiting[at].worth, at))
        done += waiting[at].worth
        if done > waiting[at].deadline:
            longest, _ = heappop(kept)
            done += longest
    in_time = [at for _, at in kept] or range(len(waiting))
    return min(in_time, key=lambda at: (waiting[at].deadline, at))


def _best(
    waiting: Sequence[Unit],
    firsts: Sequence[int],
    policy: BatchPolicy,
    costs: Costs,
    *,
    within_s: float = inf,
) -> _Batch:
    """The best batch with one of these units in it, over all lengths that it can be padded to.

    It takes no more than so many seconds, if one does.
    """
    made = _packed if policy.packed else _padded
    found = made(waiting, firsts, policy, costs)
    found = [batch for batch in found if batch.seconds <= within_s] or found
    best = max(batch.value for batch in found)
    good = AS_GOOD_PACKED if policy.packed else GOOD
    return min((batch for batch in found if batch.value >= good * best), key=_seconds)


def _padded(
    waiting: Sequence[Unit], firsts: Sequence[int], policy: BatchPolicy, costs: Costs
) -> list[_Batch]:
    """Those with one of these units in it, for each length the longest rows first."""
    order = sorted(range(len(waiting)), key=lambda at: (-waiting[at].longest, at))
    own = min(waiting[at].longest for at in firsts)
    found: list[_Batch] = []
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
                lambda rows, _, length=length: costs.seconds(rows, length),  # type: ignore[misc]
            )
    return found


def _packed(
    waiting: Sequence[Unit], firsts: Sequence[int], policy: BatchPolicy, costs: Costs
) -> list[_Batch]:
    """Those with one of these units in it, for each width of a row: of narrow ones the oldest first, else the longest.

    What a layout leaves empty is not known before it is made, and little.
    """
    own = max(NARROW, min(waiting[at].longest for at in firsts))
    found: list[_Batch] = []
    for width in sorted({own, *(unit.longest for unit in waiting if unit.longest > own)}):
        places = [at for at, unit in enumerate(waiting) if unit.longest <= width]
        if width > NARROW:
            places.sort(key=lambda at: (-waiting[at].longest, at))
        first = firsts[0] if len(firsts) == 1 else places[0]
        places = [first, *(at for at in places if at != first)]
        if waiting[first].rows <= policy.rows(width):
            found += _growing(
                [(waiting[at], at) for at in places],
                policy.rows(width),
                lambda _, tokens, width=width: costs.row_seconds(cost(tokens, width), 1),  # type: ignore[misc]
            )
    return found


@dataclass(frozen=True, slots=True)
class _Batch:
    """What a batch is worth per second, how long it takes, and the first `count` of `places` that are in it."""

    value: float
    seconds: float
    places: list[int]
    count: int

    @property
    def members(self) -> list[int]:
        return self.places[: self.count]


def _seconds(batch: _Batch) -> float:
    return batch.seconds


def _growing(
    units: Sequence[tuple[Unit, int]], room: int, seconds_of: Callable[[int, int], float]
) -> list[_Batch]:
    """Batches of at most so many rows: the first unit, and ever more of the others, by their places.

    `seconds_of` says what so many rows with so many tokens take.
    """
    rows, tokens, value, best = 0, 0, 0.0, 0.0
    places: list[int] = []
    found: list[_Batch] = []
    for unit, at in units:
        if rows + unit.rows > room:
            continue
        rows, tokens, value = rows + unit.rows, tokens + unit.tokens, value + unit.worth
        places.append(at)
        seconds = seconds_of(rows, tokens)
        found.append(_Batch(value / seconds, seconds, places, len(places)))
        best = max(best, value / seconds)
        if value / seconds < HOPELESS * best or rows == room:
            break
    return found


def packs(lengths: Sequence[int], policy: BatchPolicy, costs: Costs) -> list[list[int]]:
    """What of one request's rows runs together, by their places: all of it where it fits, else rows of like lengths."""
    if len(lengths) == 1:
        return [[0]]
    padded = [policy.padded(length) for length in lengths]
    whole, split = max(padded), _by_length(padded, policy, costs)
    if len(padded) > policy.rows(whole) or not (policy.mixed or min(padded) == whole):
        return split
    apart = sum(_together_s([padded[at] for at in each], policy, costs) for each in split)
    together = _together_s(padded, policy, costs)
    return [list(range(len(padded)))] if together <= WHOLE * apart else split


def _together_s(lengths: Sequence[int], policy: BatchPolicy, costs: Costs) -> float:
    """What rows of these lengths take in one batch."""
    if policy.packed:
        return costs.row_seconds(cost(sum(lengths), max(NARROW, *lengths)), 1)
    return costs.seconds(len(lengths), max(lengths))


def _by_length(padded: Sequence[int], policy: BatchPolicy, costs: Costs) -> list[list[int]]:
    """The longest row and what is best beside it, and so on with those that are left."""
    left = sorted(range(len(padded)), key=lambda at: (-padded[at], at))
    found = []
    while left:
        units = [
            Unit(
                rows=1,
                longest=padded[at],
                worth=worth(padded[at], policy, costs),
                place=0.0,
                tokens=padded[at],
            )
            for at in left[: policy.rows(padded[left[0]])]
        ]
        batch = set(_best(units, [0], policy, costs).members)
        found.append(sorted(left[at] for at in batch))
        left = [row for at, row in enumerate(left) if at not in batch]
    return found
