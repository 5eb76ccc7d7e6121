"""Engine processes with the same models in them, one for each device: a batch goes where there is least to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from alula.core.tensor import Feeds
from alula.generate import Piece, Request
from alula.serve.exchange import EngineAway
from alula.serve.named import Named
from alula.serve.opened import Opened
from alula.serve.outcome import Outcome
from alula.serve.process import EngineProcess, Opening
from alula.serve.sequences import Load
from alula.serve.streams import Stream
from alula.serve.supervisor import State, Supervisor

BEST: Sequence[State] = ("ready", "starting", "restarting", "broken", "stopped")
"""How engines may be, the best first: the best of them is how they all are together."""


class Fleet:
    """The supervisors of some engine processes, as though they were one; a model has the same number in all of them.

    What one that ends was working on has failed, and is not given to another one: who knows what ended it.
    """

    def __init__(
        self,
        command: Sequence[str],
        bundles: Sequence[Named],
        openings: Sequence[Opening],
        *,
        run_timeout_s: float = 120.0,
        first: EngineProcess | None = None,
    ) -> None:
        self.members = tuple(
            Supervisor(command, bundles, opening, run_timeout_s=run_timeout_s, first=None if at else first)
            for at, opening in enumerate(openings)
        )
        self._numbers = len(bundles)
        self._written_by: dict[Stream, Supervisor] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def state(self) -> State:
        """That of the best of them."""
        return min((each.state for each in self.members), key=BEST.index)

    @property
    def live(self) -> bool:
        """Whether one of them answers, or may come to do so by itself."""
        return any(each.live for each in self.members)

    @property
    def restarts(self) -> int:
        """Times that any of them was started again."""
        return sum(each.restarts for each in self.members)

    @property
    def loads(self) -> dict[int, Load]:
        """How much each model that writes has to do, wherever it does it."""
        found: dict[int, Load] = {}
        for member in self.members:
            for model, load in member.loads.items():
                found[model] = found.get(model, Load()) + load
        return found

    def opened(self, model: int) -> Opened:
        """What the engines say of a model: their lanes add up, and each holds as much as the others do."""
        each = [member.opened[model] for member in self.members if model in member.opened]
        return replace(
            each[0],
            holds=min(one.holds for one in each),
            lanes=sum(one.lanes for one in each),
            bytes=max(one.bytes for one in each),
        )

    async def start(self) -> None:
        """Start all of them, and open every model; the first failure is raised, since a restart would not cure it."""
        await asyncio.gather(*(each.start() for each in self.members))

    async def run(self, model: int, feeds: Feeds, wanted: Sequence[str] | None = None) -> Outcome:
        """Run one batch where least is running; raises what `Supervisor.run` does."""
        return await self._best(lambda each: each.running).run(model, feeds, wanted)

    async def write(
        self,
        model: int,
        requests: Sequence[Request],
        within_s: float,
        observe: Callable[[int, Piece], None],
        later_s: float = 0.0,
    ) -> Stream:
        """Put answers in the line where it is shortest; whoever has the stream must `leave` it at last."""
        member = self._best(lambda each: each.writing(model))
        stream = await member.write(model, requests, within_s, observe, later_s)
        self._written_by[stream] = member
        return stream

    def leave(self, stream: Stream) -> int:
        """Take no more from a stream, and have what is not ended cancelled; gives how many answers that were."""
        member = self._written_by.pop(stream, None)
        return member.leave(stream) if member else 0

    def writing(self, model: int) -> int:
        """How many answers of a model are being written, wait, or are to be cancelled."""
        return sum(each.writing(model) for each in self.members)

    async def open(self, bundle: Named) -> int:
        """Open one more model on all that are live, or on none; gives its number. Raises why it could not be."""
        opening = [each for each in self.members if each.live]
        if not opening:
            raise EngineAway(f"the engine is {self.state}")
        number, self._numbers = self._numbers, self._numbers + 1
        found = await asyncio.gather(*(each.open(number, bundle) for each in opening), return_exceptions=True)
        errors = [each for each in found if each is not None]
        if errors:
            await asyncio.gather(
                *(each.close(number) for each, error in zip(opening, found, strict=True) if error is None)
            )
            raise errors[0]
        return number

    async def close(self, model: int) -> None:
        """Close a model that nobody asks any more, once all that it was asked for is answered."""
        await asyncio.gather(*(each.close(model) for each in self.members))

    async def stop(self) -> None:
        """End all of them; safe to call twice."""
        await asyncio.gather(*(each.stop() for each in self.members))

    def when_replaced(self, told: Callable[[int], None]) -> None:
        """Have somebody told of models whose bundle is another one by now; engines that have it open close it."""
        for member in self.members:
            member.replaced = partial(self._replaced, member, told)

    def _replaced(self, member: Supervisor, told: Callable[[int], None], model: int) -> None:
        for each in self.members:
            if each is not member:
                self._later(each.close(model))
        told(model)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _best(self, busy: Callable[[Supervisor], int]) -> Supervisor:
        """Who is in the best state, and of these who has least to do."""
        return min(self.members, key=lambda each: (BEST.index(each.state), busy(each)))
