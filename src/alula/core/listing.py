"""Many names in one line of a message."""

from __future__ import annotations

from collections.abc import Sequence

MOST = 5


def some(names: Sequence[str]) -> str:
    """The first few, and how many more there are: "a, b, c, d, e and 7 more"."""
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return f"{', '.join(names[:MOST])}{more}"
