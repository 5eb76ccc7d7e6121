"""Which of the waiting requests go into a batch. Pure: no clock, no queue, no engine."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate
from math import inf

from alula.batching.arrangement import Arrangement, Batch, arranged
from alula.batching.costs import Costs
from alula.batching.limits import BatchPolicy, Unit

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
    looked_at = [waiting[at] for at in due[:LOOKED_AT]]
    return [due[at] for at in _chosen(looked_at, start, arranged(policy, costs))]


def _chosen(looked_at: Sequence[Unit], start: float, rows: Arrangement) -> list[int]:
    if not looked_at:
        return []
    slack = _slack(looked_at, start)
    if slack >= 0 and rows.passes and not _waits_long(looked_at, start):
        batch = _best(looked_at, range(len(looked_at)), rows)
        if batch.seconds <= slack:
            return batch.members
    first = _most_in_time(looked_at, start) if slack < 0 else 0
    batch = _best(looked_at, [first], rows, within_s=looked_at[first].deadline - start)
    return rows.filled(batch.members, looked_at)


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
    waiting: Sequence[Unit], firsts: Sequence[int], rows: Arrangement, *, within_s: float = inf
) -> Batch:
    """The best batch with one of these units in it; it takes no more than so many seconds, if one does."""
    found = rows.batches(waiting, firsts)
    found = [batch for batch in found if batch.seconds <= within_s] or found
    best = max(batch.value for batch in found)
    return min((batch for batch in found if batch.value >= rows.good * best), key=lambda batch: batch.seconds)


def packs(lengths: Sequence[int], policy: BatchPolicy, costs: Costs) -> list[list[int]]:
    """What of one request's rows runs together, by their places: all of it where it fits, else rows of like lengths."""
    if len(lengths) == 1:
        return [[0]]
    rows = arranged(policy, costs)
    padded = [policy.padded(length) for length in lengths]
    whole, split = max(padded), _by_length(padded, policy, rows)
    if len(padded) > policy.rows(whole) or not (policy.mixed or min(padded) == whole):
        return split
    apart = sum(rows.together_s([padded[at] for at in each]) for each in split)
    return [list(range(len(padded)))] if rows.together_s(padded) <= WHOLE * apart else split


def _by_length(padded: Sequence[int], policy: BatchPolicy, rows: Arrangement) -> list[list[int]]:
    """The longest row and what is best beside it, and so on with those that are left."""
    left = sorted(range(len(padded)), key=lambda at: (-padded[at], at))
    found = []
    while left:
        units = [
            Unit(rows=1, longest=padded[at], worth=rows.row_s(padded[at]), place=0.0, tokens=padded[at])
            for at in left[: policy.rows(padded[left[0]])]
        ]
        batch = set(_best(units, [0], rows).members)
        found.append(sorted(left[at] for at in batch))
        left = [row for at, row in enumerate(left) if at not in batch]
    return found
