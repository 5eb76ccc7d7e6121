"""Names in one line of a message: many of them, or the one that is there twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

MOST = 5


def some(names: Sequence[str]) -> str:
    """The first few, and how many more there are: "a, b, c, d, e and 7 more"."""
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return f"{', '.join(names[:MOST])}{more}"


def twice(names: Iterable[str]) -> str:
    """The first of those that are there more than once, of which there is one."""
    return next(name for name, count in Counter(names).items() if count > 1)
