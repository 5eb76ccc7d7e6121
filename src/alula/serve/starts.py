"""How often an engine process may be started. Pure but for what it remembers."""

from __future__ import annotations

from collections import deque

STARTS = 5
"""So many starts within `WINDOW_S` are tried before the engine counts as broken."""
WINDOW_S = 60.0


class Starts:
    """The last starts, in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._at: deque[float] = deque(maxlen=STARTS)

    def __bool__(self) -> bool:
        return bool(self._at)

    def begun(self, now: float) -> None:
        """One more was made."""
        self._at.append(now)

    def pause_s(self, now: float) -> float | None:
        """How long to wait before the next one, ever longer; None after too many."""
        recent = sum(now - at < WINDOW_S for at in self._at)
        if recent >= STARTS:
            return None
        return 0.1 * 3.0 ** (recent - 1) if recent > 1 else 0.0
