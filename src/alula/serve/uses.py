"""How many requests go through something, and since when none does."""

from __future__ import annotations

import asyncio
from time import monotonic

from alula.serve import records


class Use:
    """Requests that have picked a model and are not answered yet; `last` is when one last came or went."""

    def __init__(self) -> None:
        self.count = 0
        self.last = monotonic()
        self._none = asyncio.Event()
        self._none.set()

    def until_answered(self) -> None:
        """One more, until the request at hand is answered; outside of one, nobody is counted."""
        if records.at_hand() is None:
            return
        self.count += 1
        self.last = monotonic()
        self._none.clear()
        records.current().then.append(self._leave)

    async def over(self) -> None:
        """Wait until there is none."""
        await self._none.wait()

    def _leave(self) -> None:
        self.count -= 1
        self.last = monotonic()
        if not self.count:
            self._none.set()
