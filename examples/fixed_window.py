"""`alula serve` with the batcher that most servers have, to compare with: 32 rows in the order they came, or 5 ms."""

from __future__ import annotations

import asyncio
import sys
from typing import TypeVar

from alula.batching import Batcher
from alula.batching.queue import Waiting
from alula.cli import main
from alula.serve import service

ROWS = 32
WINDOW_S = 0.005

In = TypeVar("In")
Out = TypeVar("Out")


class FixedWindow(Batcher[In, Out]):
    """Whoever comes first waits until 32 are there, or 5 ms; lengths count for nothing."""

    async def _is_due(self) -> bool:
        while True:
            self._queue.drop_answered()
            if self._queue.waiting and self._idle:
                left = self._queue.waiting[0].request.since + WINDOW_S - self._clock()
                if self._queue.rows >= ROWS or left <= 0 or self._closing:
                    return True
                await asyncio.sleep(min(left, 0.001))
                continue
            if not self._queue.waiting and self._closing:
                return False
            self._changed.clear()
            await self._changed.wait()

    def _next(self, start: float) -> list[Waiting[In, Out]]:
        batch: list[Waiting[In, Out]] = []
        for waiting in self._queue.waiting:
            longest = max(waiting.unit.longest, *(each.unit.longest for each in batch), 1)
            if batch and len(batch) >= min(ROWS, self._policy.rows(longest)):
                break
            batch.append(waiting)
        self._queue.leave(set(batch))
        return batch


if __name__ == "__main__":
    vars(service)["Batcher"] = FixedWindow
    sys.exit(main())
