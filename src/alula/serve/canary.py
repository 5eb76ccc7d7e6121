"""A small request through each engine at the start, now and then, and after every restart: it must answer as it did.

It goes the way of every request, behind those that are there. So it tells of what clients meet, and an engine that has
much to do is late with it, and well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import TypeAlias

import numpy as np

from alula.bundles import Bundle
from alula.core.errors import AlulaError, EngineError, Overloaded
from alula.core.tensor import Array, Feeds, TensorSpec
from alula.generate import Chosen, Request, Sampling, Stopping
from alula.serve.catalogue import Served
from alula.serve.exchange import EngineAway
from alula.serve.opening import APART, PART, TOP, alike, real
from alula.serve.pulse import Finding, Pulse
from alula.serve.supervisor import Supervisor

log = logging.getLogger(__name__)

LIKE = 0.98
"""Cosine to the first answer, which another kernel after a restart has, and a wrong one has not."""

WRITING_S = 60.0

Told: TypeAlias = Callable[[str, Finding, float], None]
"""Of a model's name, a finding, and the seconds it took."""


class Canaries:
    """Asks all engines in turn as long as `watch` runs; `services` come with the supervisor's numbers for them.

    `beside` stands behind the names of models here, where there are two of one name.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        services: Callable[[], Iterable[tuple[int, Served]]],
        every_s: float,
        told: Told,
        beside: str = "",
    ) -> None:
        self._supervisor = supervisor
        self._services = services
        self._every_s = every_s
        self._told = told
        self._beside = beside
        self._asking: dict[str, tuple[Bundle, Canary | None]] = {}
        self._pulses: dict[str, Pulse] = {}

    @property
    def pulses(self) -> Mapping[str, Pulse]:
        """What was found lately, by the names of models that are there."""
        there = self._there()
        return {name: pulse for name, pulse in self._pulses.items() if name in there}

    def _there(self) -> set[str]:
        return {service.name + self._beside for _, service in self._services()}

    async def watch(self) -> None:
        """Ask again and again, and at once where a process was started again."""
        while True:
            self._supervisor.started.clear()
            await self._ask_all()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._supervisor.started.wait(), self._every_s)

    async def _ask_all(self) -> None:
        # Not in the loop that watches, whose variables would keep a service that has left.
        for at, service in tuple(self._services()):
            await self._try(at, service)
        for gone in self._asking.keys() - self._there():
            del self._asking[gone]
            self._pulses.pop(gone, None)

    async def _try(self, at: int, service: Served) -> None:
        try:
            await self._ask(at, service)
        except Exception:  # no fault of a canary's may be the end of all of them
            log.exception("no canary of %s", service.name)

    async def _ask(self, at: int, service: Served) -> None:
        name = service.name + self._beside
        known, canary = self._asking.get(name, (None, None))
        if known is not service.bundle:  # another one by the same name has other answers
            loop = asyncio.get_running_loop()
            canary = await loop.run_in_executor(None, canary_of, service.bundle)
            self._asking[name] = service.bundle, canary
            self._pulses.pop(name, None)
        if canary is None:
            return
        began = monotonic()
        finding, why = await canary.ask(self._supervisor, at)
        self._told(name, finding, monotonic() - began)
        self._pulses[name], verdict = self._pulses.get(name, Pulse()).after(finding)
        if verdict != "leave":
            do = self._supervisor.restart if verdict == "restart" else self._supervisor.give_up
            do(f"{name}: {why}")


class Canary:
    """One model's small request, and what it was answered at first."""

    def __init__(self, feeds: Feeds, outputs: Sequence[TensorSpec] = ()) -> None:
        self._feeds = feeds
        self._outputs = outputs
        self._first: Feeds | None = None

    async def ask(self, supervisor: Supervisor, at: int) -> tuple[Finding, str]:
        """What comes of it now, and in words why that is not well."""
        try:
            found = await self._answer(supervisor, at)
        except (EngineAway, Overloaded):
            return "away", ""
        except AlulaError as error:
            if self._first is None:  # nothing shows that it ever was answered
                return "away", ""
            return "failed", f"a request that was answered before fails now: {error}"
        if self._first is None:
            self._first = found
        return self._compared(self._first, found)

    async def _answer(self, supervisor: Supervisor, at: int) -> Feeds:
        given = (await supervisor.run(at, self._feeds)).outputs
        return {spec.name: real(given[spec.name], self._feeds, spec.shape) for spec in self._outputs}

    def _compared(self, first: Feeds, found: Feeds) -> tuple[Finding, str]:
        for name, expected in first.items():
            given = found.get(name)
            if given is None or given.shape != expected.shape or not _alike(given, expected):
                return "wrong", f"output {name!r} of a stored sample is not what it was at the start"
        return "well", ""


class WritingCanary(Canary):
    """That of a model that writes: two tokens behind a stored prompt, and how sure the model is of which."""

    def __init__(self, request: Request) -> None:
        super().__init__({})
        self._request = request

    async def _answer(self, supervisor: Supervisor, at: int) -> Feeds:
        stream = await supervisor.write(at, [self._request], WRITING_S, lambda place, piece: None)
        chosen: list[Chosen] = []
        try:
            while taken := await stream.take():
                for _, piece in taken:
                    if piece.error:
                        raise EngineError(piece.error)
                    chosen += piece.tokens
        finally:
            supervisor.leave(stream)
        return {f"token {at}": np.array(each.top, np.float64) for at, each in enumerate(chosen)}

    def _compared(self, first: Feeds, found: Feeds) -> tuple[Finding, str]:
        for name, expected in first.items():
            now = {int(token): logprob for token, logprob in found.get(name, np.zeros((0, 2)))}
            both = [(now[int(token)], logprob) for token, logprob in expected if int(token) in now]
            apart = float(np.mean([abs(one - other) for one, other in both])) if both else float("inf")
            if len(both) * 2 < len(expected) or not apart <= APART:
                return "wrong", f"{name} behind a stored prompt is not as likely as it was at the start"
        return "well", ""


def canary_of(bundle: Bundle) -> Canary | None:
    """The smallest of a bundle's stored samples as a canary; None where it has none of use."""
    stored = bundle.stored.feeds
    if not stored:
        return None
    if not bundle.model.writes:
        return Canary(min(stored, key=_size), bundle.model.part(PART).outputs)
    prompts = [feeds for feeds in stored if set(feeds) == {"prompt", "follow", "source"}]
    if not prompts:
        return None
    feeds = min(prompts, key=_size)
    prompt, source = (tuple(map(int, feeds[name])) for name in ("prompt", "source"))
    sampling = Sampling(temperature=0, logprobs=TOP)
    return WritingCanary(
        Request(prompt=prompt, source=source, sampling=sampling, stopping=Stopping(max_tokens=2))
    )


def _size(feeds: Feeds) -> int:
    return sum(array.size for array in feeds.values())


def _alike(given: Array, expected: Array) -> bool:
    """Whether two arrays say the same; NaN is like nothing, but a first answer that had some is no measure."""
    finite = np.isfinite(expected)
    if not finite.any():
        return True
    return alike(given[finite], expected[finite]) >= LIKE
