"""Who is let in: requests that are there in full, while the server takes any."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from alula.core.errors import Overloaded
from alula.serve.errors import Refused
from alula.serve.patience import Patience


class Bodies:
    """How many bytes of bodies are here, or on their way, at most."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.bytes = 0

    def held(self) -> Held:
        """Takes bytes as they come, or refuses them for now; gives all of them back at the end."""
        return Held(self)


class Held:
    """What one request has of the bytes of all, as long as its block lasts."""

    __slots__ = ("_bodies", "_mine")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._mine = 0

    def __enter__(self) -> Callable[[int], None]:
        return self._take

    def __exit__(self, *_: object) -> None:
        self._bodies.bytes -= self._mine

    def _take(self, count: int) -> None:
        bodies = self._bodies
        if bodies.bytes + count > bodies.most:
            raise Overloaded(f"bodies of {bodies.bytes} bytes are being read or answered")
        bodies.bytes += count
        self._mine += count


class Gatekeeper:
    """Whether requests are taken now, how many are being answered, and whose bodies are still on their way."""

    def __init__(self) -> None:
        self.loading = True
        self.active = 0
        self._draining = False
        self._arriving: set[Patience] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def draining(self) -> bool:
        """Whether the server is about to stop."""
        return self._draining

    def close(self) -> None:
        """Let nobody in any more, and wait for no body that is not there yet."""
        self._draining = True
        for patience in self._arriving:
            patience.left()

    def refuse_unless_open(self) -> None:
        """Say why no request is taken, if none is."""
        if self._draining:
            raise Overloaded("the server is stopping", draining=True)
        if self.loading:
            raise Overloaded("the server is loading its models", draining=True)

    async def arrived(self, body: Awaitable[bytes], within_s: float | None) -> bytes:
        """A body, waited for outside the gate: a slow client must not hold up the end of the server.

        Without a time it is known to be here in full.
        """
        if within_s is None:
            return await body
        patience = Patience(within_s)
        self._arriving.add(patience)
        try:
            with patience:
                found = await body
        except asyncio.CancelledError:
            if not patience.ended:
                raise
            self.refuse_unless_open()
            raise Refused(
                f"the body was not there in full within {within_s:g} s", status=408, code="request_timeout"
            ) from None
        finally:
            self._arriving.discard(patience)
        self.refuse_unless_open()
        return found

    def enter(self) -> None:
        """Let one request in, or say why not."""
        self.refuse_unless_open()
        self.active += 1
        self._idle.clear()

    def leave(self) -> None:
        """One request less."""
        self.active -= 1
        if not self.active:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until no request is being answered."""
        await self._idle.wait()
