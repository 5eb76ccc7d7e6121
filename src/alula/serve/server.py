"""One running server: its engine processes, the services in front of them, and how they are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from alula.bundles import Bundle
from alula.core.errors import InputError
from alula.core.tensor import Feeds
from alula.core.words import TENSORS
from alula.serve.admission import Admission
from alula.serve.arrays import Arrays
from alula.serve.canary import Canaries
from alula.serve.catalogue import Catalogue, Served
from alula.serve.degrading import Degrading, standing_in, substitutes
from alula.serve.fleet import Fleet
from alula.serve.gate import Bodies, Gatekeeper
from alula.serve.gpus import watched
from alula.serve.metrics import Metrics
from alula.serve.models import Models
from alula.serve.named import Named
from alula.serve.observed import Observer
from alula.serve.options import ServeOptions
from alula.serve.outcome import Outcome
from alula.serve.pages import Pages
from alula.serve.pictures import READING, Pictures, Uploaded
from alula.serve.process import EngineProcess
from alula.serve.repository import Repository
from alula.serve.sequences import Load
from alula.serve.service import Batched, RunSome, Service
from alula.serve.supervisor import Supervisor
from alula.serve.usage import EnginesUp, EngineUsage
from alula.serve.writer import Writer

T = TypeVar("T")


class Server:
    """Load, answer, drain, stop: in this order, once."""

    def __init__(
        self, options: ServeOptions, bundles: Sequence[Named], first: EngineProcess | None = None
    ) -> None:
        self.options = options
        self.bundles = tuple(bundles)
        self.metrics = Metrics()
        self.admission = Admission.of(options)
        self.observer = Observer.of(options, self.metrics)
        self.gate = Gatekeeper()
        self.bodies = Bodies(max(options.max_bodies_bytes, options.max_body_bytes, options.max_image_bytes))
        self.engines = Fleet(
            options.engine_command,
            self.bundles,
            options.openings,
            run_timeout_s=options.run_timeout_s,
            first=first,
        )
        self.fallbacks = Named.all_at(map(Path, options.fallback if options.degrade else ()))
        self.beside = (
            Fleet(
                options.engine_command,
                self.fallbacks,
                [options.opening],
                run_timeout_s=options.run_timeout_s,
            )
            if self.fallbacks
            else None
        )
        self.degrading = Degrading(self.engines, options.degrade_wait_s)
        self.models = Models(
            self.engines,
            options,
            Repository(given=self.bundles, folder=Path(options.repository) if options.repository else None),
            make=lambda number, named: self._service(self.engines, number, named, ()),
            told=self.metrics.loaded,
        )
        self.models.instead = self.degrading.instead
        self.canaries = [
            Canaries(
                member, self._awake, options.canary_s, self.metrics.canary, f" (engine {at})" if at else ""
            )
            for at, member in enumerate(self.engines.members)
        ]
        self._canaries: list[asyncio.Task[None]] = []
        self._at_work = AsyncExitStack()
        self._watch()

    @property
    def catalogue(self) -> Catalogue:
        """What requests look models up in: what is served at the moment."""
        return self.models.catalogue

    @property
    def live(self) -> bool:
        """Whether starting this server again would not help."""
        return self.engines.live

    @property
    def ready(self) -> bool:
        """Whether requests are answered now, be it by fallbacks; a full queue is busy, not unready.

        Models that should be there and are not make it unready; further ones that are being loaded do not.
        """
        if self.gate.loading or self.gate.draining or self.models.missing:
            return False
        services = self.catalogue.services
        covered = bool(services) and all(self.degrading.covers(service.name) for service in services)
        return self.engines.state == "ready" or covered

    def health(self) -> dict[str, Any]:
        """How the server is, in a few words."""
        state = "draining" if self.gate.draining else self.engines.state
        if state == "ready" and (self.gate.loading or self.models.missing):
            state = "starting"
        return {
            "status": state,
            "live": self.live,
            "ready": self.ready,
            "engine": _told(self.engines.members[0]),
            **({"engines": [_told(each) for each in self.engines.members]} if self.options.devices else {}),
            **({"fallback": _told(self.beside.members[0])} if self.beside else {}),
            "degraded": self.degrading.reasons({each.name: each for each in self.catalogue.services}),
            "missing": self.models.missing,
            "canaries": {name: pulse.last for each in self.canaries for name, pulse in each.pulses.items()},
        }

    async def load(self) -> None:
        """Prove bundles and open tokenizers here while engine processes open the engines; done once all are."""
        fleets = [each for each in (self.engines, self.beside) if each]
        started = asyncio.gather(*(each.start() for each in fleets))
        try:
            services = await self._opened(self.engines, self.bundles)
            beside = await self._opened(self.beside, self.fallbacks, services) if self.beside else ()
            await started
        finally:
            started.cancel()
            await asyncio.wait({started})
            if not started.cancelled():
                started.exception()  # taken note of: the error of the bundle, if there is one, comes first
        await self.models.begin(services)
        for at, service in enumerate(beside):
            assert self.beside is not None
            if isinstance(service, Batched):
                service.prepare(self.beside.opened(at))
            await self._at_work.enter_async_context(service.at_work())
        canaries = [*self.canaries]
        if self.beside:
            self.degrading.begin(self.beside, substitutes(services, beside, self.options))
            every_s, told = self.options.canary_s, self.metrics.canary
            numbered = tuple(enumerate(beside))
            canaries.append(Canaries(self.beside.members[0], lambda: numbered, every_s, told, " (fallback)"))
        self.gate.loading = False
        if self.options.canary_s:
            self._canaries = [asyncio.create_task(each.watch(), name="canaries") for each in canaries]

    async def _opened(
        self, engines: Fleet, bundles: Sequence[Named], instead_of: Sequence[Served] = ()
    ) -> tuple[Served, ...]:
        """A service for each bundle, whose engine is one of these."""
        loop = asyncio.get_running_loop()
        return tuple(
            await asyncio.gather(
                *(
                    loop.run_in_executor(None, self._service, engines, at, named, instead_of)
                    for at, named in enumerate(bundles)
                )
            )
        )

    @property
    def stopped(self) -> bool:
        """Whether what is not answered by now will not be."""
        return self.engines.state == "stopped"

    async def drain(self) -> None:
        """Admit no more, and finish what was admitted."""
        self.gate.close()
        await self.gate.idle()

    async def stop(self) -> None:
        """Let the engine go; what still runs is answered with an error."""
        self.gate.close()
        for canary in self._canaries:
            canary.cancel()
        await self.engines.stop()
        if self.beside:
            await self.beside.stop()
        await self.models.close()
        await self._at_work.aclose()
        await asyncio.get_running_loop().run_in_executor(None, self.observer.close)

    def _service(self, engines: Fleet, at: int, named: Named, instead_of: Sequence[Served]) -> Served:
        bundle = Bundle.open(named.root)
        if instead_of:
            bundle = standing_in(bundle, instead_of)
        if not bundle.verified and not self.options.unverified:
            raise InputError(_unverified(bundle))
        service: Served
        if bundle.model.writes:
            service = Writer(bundle, at, engines, self.options, self.metrics)
        elif bundle.model.task in READING:
            kind = Pages if bundle.model.task == "text-detection" else Pictures
            service = kind(bundle, self._runner(engines, at), self.options, self.metrics.images)
        elif bundle.model.task == TENSORS:
            service = Arrays(bundle, self._runner(engines, at), self.options, self.metrics.images)
        else:
            service = Service(bundle, self._runner(engines, at), self.options, self.metrics.batch)
        named.refuse_if_replaced()
        self.metrics.expect(service.name, writes=bundle.model.writes)
        return service

    def answered(self, make: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """What is made for a request: once its model is there, and by what stands in for it if that must be."""
        return self.models.there(lambda: self.degrading.answered(make))

    def _awake(self) -> list[tuple[int, Served]]:
        """Models that have an engine, and their numbers in the engine process."""
        return [(each.number, each.service) for each in self.models.awake]

    def _runner(self, engines: Fleet, at: int) -> RunSome:
        async def run(feeds: Feeds, wanted: Sequence[str] | None = None) -> Outcome:
            return await engines.run(at, feeds, wanted)

        return run

    def _watch(self) -> None:
        watch = self.metrics.watch
        self.metrics.count(
            "engine_restarts", "Times the engine was started again", lambda: self.engines.restarts
        )
        watch("requests_active", "Requests being answered", lambda: self.gate.active)
        watch("bodies_bytes", "Bytes of bodies being read or answered", lambda: self.bodies.bytes)
        self.metrics.watch_models("queue_size", "Rows waiting for a batch", self._waiting)
        self.metrics.loads(self._loads)
        watch("models_loaded", "Models that have an engine", lambda: len(self.models.awake))
        self.metrics.watch_models("model_memory_bytes", "What models took when they were opened", self._bytes)
        self.metrics.registry.register(EnginesUp(self._up))
        self.metrics.registry.register(EngineUsage(self._pids))
        if gpus := watched(self._pids):
            self.metrics.registry.register(gpus)

    @property
    def largest_upload(self) -> int:
        """Bytes that the body of a request with images may have; none is taken where no model reads any."""
        reads = any(isinstance(service, Uploaded) for service in self.catalogue.services)
        return max(self.options.max_body_bytes, self.options.max_image_bytes if reads else 0)

    @property
    def largest_tensors(self) -> int:
        """The same of a request with tensors, which over gRPC is its message."""
        takes = any(isinstance(service, Uploaded | Arrays) for service in self.catalogue.services)
        return max(self.options.max_body_bytes, self.options.max_image_bytes if takes else 0)

    def largest_body(self, *, shown: bool) -> int:
        """The same of a body of JSON, in which images are `shown` to models that write."""
        sees = shown and any(isinstance(each, Writer) and each.spec.sees for each in self.catalogue.services)
        return max(self.options.max_body_bytes, self.options.max_image_bytes if sees else 0)

    def _pids(self) -> dict[str, int]:
        """Engine processes by number: those of the models, then that of their fallbacks."""
        both = (*self.engines.members, *(self.beside.members if self.beside else ()))
        return {str(at): each.pid for at, each in enumerate(both) if each.pid}

    def _up(self) -> dict[tuple[str, str], bool]:
        """Which of the models' engine processes answer, by number and device."""
        members = enumerate(self.engines.members)
        return {(str(at), each.device): each.state == "ready" for at, each in members}

    def _waiting(self) -> dict[str, float]:
        """Rows that wait for a batch, by model; answers that wait are counted apart."""
        return {
            service.name: service.waiting for _, service in self._awake() if not isinstance(service, Writer)
        }

    def _bytes(self) -> dict[str, float]:
        return {each.service.name: each.bytes for each in self.models.awake}

    def _loads(self) -> dict[str, Load]:
        """How much each model that writes has to do."""
        loads = self.engines.loads
        return {
            service.name: loads.get(at, Load())
            for at, service in self._awake()
            if isinstance(service, Writer)
        }


def _told(supervisor: Supervisor) -> dict[str, Any]:
    """How an engine process is."""
    return {
        "state": supervisor.state,
        "pid": supervisor.pid,
        "restarts": supervisor.restarts,
        "reason": supervisor.reason,
        **({"device": supervisor.device} if supervisor.device else {}),
    }


def _unverified(bundle: Bundle) -> str:
    said = f"{bundle.root}: is not verified: "
    if not bundle.checks:
        return f"{said}it was compiled and not run; run alula verify {bundle.root} where it can run"
    failed = [check for check in bundle.checks if not check.passed]
    if failed:
        worst = failed[0]
        reason = f"its check {worst.metric} of {worst.output!r} is {worst.worst:g}, limit {worst.limit:g}"
    else:
        reason = "no check compared it with anything but its own graph"
    return f"{said}{reason}; run alula verify, or serve it all the same with --unverified"
