"""Which tokens stay when a text is too long. Pure; special tokens always stay.

Tokens are dropped by position from one finished encoding, so no state of a tokenizer changes between calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from alula.core.errors import InputError

Cut: TypeAlias = Callable[[Sequence[int], int, bool], list[int]]
"""(source of each token, limit, drop from the left) to the positions that stay."""


def cut_first(sources: Sequence[int], limit: int, left: bool) -> list[int]:
    """Cut the only text."""
    firsts = sources.count(0)
    return _keep(sources, _room(sources, limit), len(sources) - firsts, left)


def cut_longest(sources: Sequence[int], limit: int, left: bool) -> list[int]:
    """Cut two texts token by token, always the longer one."""
    room = _room(sources, limit)
    first, second = sources.count(0), sources.count(1)
    short = min(first, second, room // 2)
    if first > second:
        return _keep(sources, room - short, short, left)
    return _keep(sources, short, room - short, left)


def cut_second(sources: Sequence[int], limit: int, left: bool) -> list[int]:
    """Cut the second of two texts alone; the first must leave room for some of it."""
    first = sources.count(0)
    room = _room(sources, limit) - first
    if room < 1:
        raise InputError(
            f"the first text has {first} tokens, which leaves no room for the second; the model takes {limit}"
        )
    return _keep(sources, first, room, left)


def _room(sources: Sequence[int], limit: int) -> int:
    specials = len(sources) - sources.count(0) - sources.count(1)
    if specials > limit:
        raise InputError(f"the model takes {limit} tokens, and special ones alone are {specials}")
    return limit - specials


def _keep(sources: Sequence[int], first: int, second: int, left: bool) -> list[int]:
    """Positions of all special tokens and of so many tokens of each text."""
    room = {0: first, 1: second}
    positions = range(len(sources))
    kept = []
    for at in reversed(positions) if left else positions:
        source = sources[at]
        if source in room:
            room[source] -= 1
            if room[source] < 0:
                continue
        kept.append(at)
    return kept[::-1] if left else kept
