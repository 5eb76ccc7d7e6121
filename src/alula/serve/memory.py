"""Memory of this process, and of others: what is resident, and what may go back to the system."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path


def resident_bytes(pid: int | None = None) -> int:
    """What of a process, or of this one, lies in memory now; 0 where the system does not say so, or it is gone."""
    try:
        pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def give_back() -> None:
    """Let glibc return what is free in its heaps, which it keeps for itself otherwise; elsewhere nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
