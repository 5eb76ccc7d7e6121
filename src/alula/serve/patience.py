"""Work that is given up where it stands: because its time is over, or because nobody waits for it any more."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Literal

Why = Literal["late", "left"]


class Patience:
    """Cancels the task that is in its block once so many seconds are over, or when it is told to, and says why.

    Costs less than a task of its own for the work, and another one that waits for its client to leave.
    """

    def __init__(self, within_s: float | None = None) -> None:
        self.ended: Why | None = None
        self._within_s = within_s
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None

    def __enter__(self) -> Patience:
        self._task = asyncio.current_task()
        if self._within_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._within_s, self._late)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._timer:
            self._timer.cancel()
        task, self._task = self._task, None
        if self.ended and task and hasattr(task, "uncancel"):  # from 3.11 on
            task.uncancel()

    def left(self) -> None:
        """Nobody waits any more."""
        self._end("left")

    def _late(self) -> None:
        self._end("late")

    def _end(self, why: Why) -> None:
        if self._task and not self.ended:
            self.ended = why
            self._task.cancel()
