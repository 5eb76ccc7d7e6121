"""One turn of one contender: how calls are timed, the same on every side."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from statistics import median
from time import perf_counter_ns

Calls = Callable[[int], list[float]]
"""Does so many calls and gives the ms of each, or the mean of all where single ones have no time of their own."""

_FIRST = 3
_WAKING_MS = 20.0
_MOST = 400


def one_by_one(
    call: Callable[[int], object],
    sets: int,
    arrange: Callable[[int], object] = lambda at: None,
    clock: Callable[[], int] = perf_counter_ns,
) -> Calls:
    """Calls of inputs that take turns; what `arrange` does before each is not counted."""

    def calls(count: int) -> list[float]:
        times = []
        for at in range(count):
            arrange(at % sets)
            begun = clock()
            call(at % sets)
            times.append((clock() - begun) / 1e6)
        return times

    return calls


def turn(calls: Calls, ms: float, least: int = 5) -> tuple[float, int]:
    """The median of about `ms` of calls, and how many they were.

    What comes first is not counted: it wakes a GPU whose clocks fell while others had their turn.
    """
    estimate = max(median(calls(_FIRST)), 1e-3)
    calls(min(ceil(_WAKING_MS / estimate), _MOST))
    count = min(max(int(ms / estimate), least), _MOST)
    return median(calls(count)), count
