"""The models that are served: loaded, replaced, unloaded and put to sleep one after the other, while requests go on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal, TypeVar

from alula.bundles import Bundle
from alula.core.errors import AlulaError
from alula.serve import memory
from alula.serve.budget import Budget, Held
from alula.serve.catalogue import Catalogue, Served, itself
from alula.serve.errors import Refused
from alula.serve.exchange import EngineAway
from alula.serve.fleet import Fleet
from alula.serve.named import Named, by_name
from alula.serve.options import ServeOptions
from alula.serve.repository import Repository
from alula.serve.service import Batched
from alula.serve.supervisor import CLOSING_S
from alula.serve.trial import tried
from alula.serve.uses import Use

log = logging.getLogger(__name__)

T = TypeVar("T")
State = Literal["READY", "UNAVAILABLE"]

AGAIN_S = 5.0
"""A model that could not be loaded for a request is not tried again for this long."""

LEAVE_S = 10.0
"""So long a load waits for the memory of models that are being unloaded."""


class Asleep(EngineAway):
    """A model's engine was closed, to be opened again for the next request."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not loaded at the moment")
        self.name = name


@dataclass(kw_only=True, eq=False, slots=True)
class Standing:
    """A model and its engine; one that is `asleep` has none. `lost` says why it should have one and has not."""

    named: Named
    number: int
    service: Served
    bytes: int
    work: AsyncExitStack = field(default_factory=AsyncExitStack)
    use: Use = field(default_factory=Use)
    asleep: bool = False
    lost: str = ""
    not_before: float = 0.0

    def is_called(self, name: str) -> bool:
        """Whether requests mean it by this name."""
        return name in {self.service.name, self.named.root.absolute().name}


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A line of the repository's index."""

    name: str
    state: State
    reason: str = ""


class Models:
    """Owns what is served from `begin` to `close`.

    `make` gives the service of a bundle whose engine has a number, `instead` who answers for one at the moment, and
    `told` hears of each load how long it took and whether it came about.
    """

    def __init__(
        self,
        engines: Fleet,
        options: ServeOptions,
        repository: Repository,
        make: Callable[[int, Named], Served],
        told: Callable[[float, bool], None],
    ) -> None:
        self._engines = engines
        self._options = options
        self._budget = Budget(options.memory_bytes)
        self.repository = repository
        self._make = make
        self._told = told
        self._standing: tuple[Standing, ...] = ()
        self._needs: dict[str, int] = {}
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._leaving: set[Standing] = set()
        self.instead: Callable[[Served, type[object]], Served] = itself
        self.catalogue = self._catalogue(())
        if repository.folder is not None:
            engines.when_replaced(self._replaced)

    @property
    def awake(self) -> list[Standing]:
        """Those that have an engine."""
        return [each for each in self._standing if not each.asleep]

    @property
    def missing(self) -> dict[str, str]:
        """Why models that should be there are not, by their names."""
        return {each.service.name: each.lost for each in self._standing if each.lost}

    async def begin(self, services: Sequence[Served]) -> None:
        """Take requests for what was opened at the start; the places of services are their numbers."""
        self.catalogue = self._catalogue(services)
        for number, (named, service) in enumerate(zip(self.repository.given, services, strict=True)):
            standing = await self._at_work(named, number, service)
            self._needs[named.identity] = standing.bytes
            self._standing = (*self._standing, standing)
        await self._make_room(0, "what is named at the start", None)

    async def close(self) -> None:
        """Answer what was admitted, as far as there are engines to do so."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for standing in (*self._standing, *self._leaving):
            await standing.work.aclose()

    def taken(self, service: Served) -> None:
        """A request is for this service from now on, if it has an engine; raises `Asleep` if not."""
        for standing in self._standing:
            if standing.service is service:
                if standing.asleep:
                    raise Asleep(service.name)
                standing.use.until_answered()

    async def there(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """What an attempt makes, once the model that it is for is awake."""
        while True:
            try:
                return await attempt()
            except Asleep as asleep:
                name = asleep.name
            await self._changed(lambda name=name: self._wake(name))  # type: ignore[misc]  # bound at once

    async def load(self, name: str) -> None:
        """Serve the bundle of this name as it lies there now; who is served meanwhile is served on.

        A model that takes the place of another does so once it has answered; if it cannot, the other one stays.
        """
        await self._changed(lambda: self._load_named(name))

    async def unload(self, name: str) -> None:
        """Take no more requests for a model; its engine is closed once those that are here are answered."""
        await self._changed(lambda: self._unload(name))

    async def reload(self) -> None:
        """Load again what lies otherwise in its folder now than it is served; errors are logged."""
        for each in self._standing:
            found = Named.at(each.named.root)
            if found.identity != each.named.identity:
                with contextlib.suppress(
                    AlulaError, OSError
                ):  # it is in the log, and the others are looked at, too
                    await self._changed(lambda found=found: self._load(found))  # type: ignore[misc]  # bound at once

    def reload_later(self) -> None:
        """The same, not waited for."""
        self._later(self.reload())

    def index(self) -> list[Entry]:
        """Every bundle that may be served, and whether it is."""
        served = {each.named.root.absolute().name: each for each in self._standing}
        return [
            _entry(name, served.get(name)) for name in {**dict.fromkeys(served), **self.repository.folders}
        ]

    def _catalogue(self, services: Sequence[Served]) -> Catalogue:
        return Catalogue(services=tuple(services), taken=self.taken, instead=self.instead)

    async def _load_named(self, name: str) -> None:
        known = next((each for each in self._standing if each.is_called(name)), None)
        await self._load(self.repository.named(known.named.root.absolute().name if known else name))

    async def _wake(self, name: str) -> None:
        standing = next((each for each in self._standing if each.service.name == name), None)
        if standing is None or not standing.asleep:
            return
        if monotonic() < standing.not_before:
            raise EngineAway(standing.lost)
        try:
            await self._load(Named.at(standing.named.root))
        except AlulaError as error:
            standing.lost = f"{name} could not be loaded again: {error}"
            standing.not_before = monotonic() + AGAIN_S
            raise EngineAway(standing.lost) from error

    async def _load(self, named: Named) -> None:
        old = next((each for each in self._standing if each.named.root == named.root), None)
        loop, began = asyncio.get_running_loop(), monotonic()
        try:
            if old and not old.asleep and old.named == named:
                await loop.run_in_executor(
                    None, Bundle.open, named.root
                )  # what is served is proved whole again
                return
            await self._put(await self._opened(named, old), old)
        except Exception as error:
            self._told(monotonic() - began, False)
            log.error("%s is not loaded, and what was served before is: %s", named.root, error)  # noqa: TRY400 - the text says it
            # Clients are told of it, too, and not where it lies.
            error.args = tuple(
                by_name(each, [named.root]) if isinstance(each, str) else each for each in error.args
            )
            raise
        self._told(monotonic() - began, True)
        log.warning("%s is served from now on, after %.1f s", named.root.name, monotonic() - began)

    async def _opened(self, named: Named, old: Standing | None) -> Standing:
        """A model with an engine that has answered, but no request yet."""
        if not named.identity:
            await asyncio.get_running_loop().run_in_executor(
                None, Bundle.open, named.root
            )  # says what is wrong
        if named.identity not in self._needs:
            command, opening = self._options.engine_command, self._options.opening
            self._needs[named.identity] = (await tried(command, named, opening)).bytes
        await self._make_room(self._needs[named.identity], named.root.name, old)
        number = await self._engines.open(named)
        try:
            loop = asyncio.get_running_loop()
            service = await loop.run_in_executor(None, self._make, number, named)
            return await self._at_work(named, number, service)
        except BaseException:
            self._later(self._engines.close(number))
            raise

    async def _at_work(self, named: Named, number: int, service: Served) -> Standing:
        opened = self._engines.opened(number)
        if isinstance(service, Batched):
            service.prepare(opened)
        needs = self._needs.get(named.identity, opened.bytes)
        standing = Standing(named=named, number=number, service=service, bytes=needs)
        await standing.work.enter_async_context(service.at_work())
        return standing

    async def _put(self, new: Standing, old: Standing | None) -> None:
        """Have requests go to a model from now on, in the place of the old one if there is one."""
        kept = list(self._standing)
        at = kept.index(old) if old else len(kept)
        kept[at : at + 1] = [new]
        try:
            catalogue = self._catalogue([each.service for each in kept])
        except AlulaError:
            self._later(self._retire(new))
            raise
        self._standing, self.catalogue = tuple(kept), catalogue
        if old and not old.asleep:
            self._later(self._retire(old))

    async def _unload(self, name: str) -> None:
        leaving = next((each for each in self._standing if each.is_called(name)), None)
        if leaving is None:
            self.repository.named(name)  # refuses a name that nothing has
            return
        self._standing = tuple(each for each in self._standing if each is not leaving)
        self.catalogue = self._catalogue([each.service for each in self._standing])
        log.warning("%s is served no more", leaving.service.name)
        if not leaving.asleep:
            self._later(self._retire(leaving))

    async def _make_room(self, needed: int, what: str, old: Standing | None) -> None:
        """Put those to sleep that nobody has used for longest, until there is room; refuse if there is none."""
        until = monotonic() + LEAVE_S
        while not self._budget.holds(needed, [each.bytes for each in (*self.awake, *self._leaving)]):
            if self._leaving and monotonic() < until:
                await asyncio.sleep(CLOSING_S)
                continue
            idle = [each for each in self.awake if not each.use.count and each is not old]
            if not self._options.unload_idle or not idle:
                held = [Held(name=each.service.name, bytes=each.bytes) for each in self.awake]
                raise Refused(self._budget.refusal(what, needed, held), status=409, code="no_memory")
            await self._sleep(min(idle, key=lambda each: each.use.last))

    async def _sleep(self, standing: Standing) -> None:
        log.warning("%s is unloaded until it is asked for again", standing.service.name)
        standing.asleep = True
        await self._retire(standing)

    async def _retire(self, standing: Standing) -> None:
        """Close an engine once nobody needs it."""
        self._leaving.add(standing)
        await standing.use.over()
        await standing.work.aclose()
        await self._engines.close(standing.number)
        self._leaving.discard(standing)
        asyncio.get_running_loop().call_soon(memory.collect)  # when this is over: a service holds itself

    def _replaced(self, number: int) -> None:
        """An engine process that was started again has not opened this one, whose bundle is another one by now."""
        for each in self.awake:
            if each.number == number:
                each.asleep, each.lost = True, "its bundle was replaced; the new one is being loaded"
                self._later(self._changed(lambda each=each: self._wake(each.service.name)))  # type: ignore[misc]

    async def _changed(self, change: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """One change after the other; who asked for it may leave, and it is made all the same."""

        async def alone() -> None:
            async with self._changing:
                await change()

        await asyncio.shield(self._later(alone()))

    def _later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.info("a change of the served models failed: %r", error)


def _entry(name: str, standing: Standing | None) -> Entry:
    if standing is None:
        return Entry(name=name, state="UNAVAILABLE", reason="not loaded")
    if standing.lost:
        return Entry(name=name, state="UNAVAILABLE", reason=standing.lost)
    return Entry(name=name, state="READY", reason="loaded at the next request" if standing.asleep else "")
