"""Memory of this process, and of others: what is resident, and what may go back to the system."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from pathlib import Path

SELDOM = 50_000
"""Objects that are made and not let go of before the collector looks for those that only hold one another, of which a
request that is answered leaves none. At Python's 700 that took an eighth of the CPU that a short text costs, and at
times 60 ms at once.
"""


def resident_bytes(pid: int | None = None) -> int:
    """What of a process, or of this one, lies in memory now; 0 where the system does not say so, or it is gone."""
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def collect_seldom() -> None:
    """Have the collector look seldom; who lets go of much that may hold itself has to call for it."""
    gc.set_threshold(SELDOM)


def collect() -> None:
    """Let go of what nobody but itself holds, and give back what that took."""
    gc.collect()
    give_back()


def give_back() -> None:
    """Let glibc return what is free in its heaps, which it keeps for itself otherwise; elsewhere nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
