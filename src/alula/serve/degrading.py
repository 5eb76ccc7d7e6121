"""Answers by something cheaper while a model's own engine is away, full or out of memory; never in silence."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from time import monotonic
from typing import TypeVar

from alula.bundles import Bundle
from alula.core.errors import AlulaError, InputError, OutOfMemoryError, Overloaded
from alula.core.model import ModelSpec
from alula.core.words import PIPELINE, TOKENS
from alula.serve import records
from alula.serve.catalogue import Served
from alula.serve.course import Course, Reason, Signs
from alula.serve.exchange import EngineAway
from alula.serve.fleet import Fleet
from alula.serve.line_reading import LineReader, LineReading, trio_of
from alula.serve.options import ServeOptions

log = logging.getLogger(__name__)

R = TypeVar("R")


@dataclass(kw_only=True, slots=True)
class _Attempt:
    """Who was asked to answer a request, and why the own engine is not to be asked again for it."""

    asked: Served | None = None
    instead: bool = False
    reason: Reason | None = None


_ATTEMPT: ContextVar[_Attempt | None] = ContextVar("attempt", default=None)


class Degrading:
    """Which of the served models have something cheaper beside them, and which of both answers now."""

    def __init__(self, own: Fleet, enter_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._own = own
        self._enter_s = enter_s
        self._clock = clock
        self._beside: Fleet | None = None
        self._substitutes: Mapping[str, Served] = {}
        self._courses: dict[str, Course] = {}
        self._no_memory: dict[str, float] = {}

    def begin(self, beside: Fleet, substitutes: Mapping[str, Served]) -> None:
        """From now on these stand in for the models of these names; their engines are those of `beside`."""
        self._beside, self._substitutes = beside, substitutes

    @property
    def possible(self) -> bool:
        """Whether the substitutes answer."""
        return self._beside is not None and self._beside.state == "ready"

    def covers(self, name: str) -> bool:
        """Whether a model is answered even without its own engine."""
        return self.possible and name in self._substitutes

    def reasons(self, services: Mapping[str, Served]) -> dict[str, Reason]:
        """Why models are answered by something cheaper now; those that are not are left out."""
        found = {name: self._look(services[name]) for name in self._substitutes if name in services}
        return {name: reason for name, reason in found.items() if reason}

    def substitute(self, service: Served, kind: type[object]) -> Served | None:
        """What of this kind could answer for a model now, whether or not it has to."""
        found = self._substitutes.get(service.name)
        if found is None or not isinstance(found, kind) or not self.possible:
            return None
        if found.spec.task == service.spec.task and (
            found.spec.digest != service.spec.digest or lacking(found.spec, service.spec)
        ):
            return None  # of another checkpoint or another build, by which the served one was replaced
        return found

    def instead(self, service: Served, kind: type[object]) -> Served:
        """Who answers a request for a model: itself, or what stands in for it, and then the record says so.

        What reads lines stands in for a model that reads pages, and not where that is to chat: not of the `kind`.
        """
        substitute = self.substitute(service, kind)
        if substitute is None:
            return service
        attempt = _ATTEMPT.get() or _Attempt()
        reason = attempt.reason or self._look(service)
        attempt.asked, attempt.instead = service, reason is not None
        if reason is None:
            return service
        record = records.current()
        record.model, record.degraded, record.because = service.name, tier_of(substitute), reason
        return substitute

    async def answered(self, make: Callable[[], Awaitable[R]]) -> R:
        """What is made, by whatever stands in if the own engine took it and could not do it, or had no room."""
        attempt = _Attempt()
        _ATTEMPT.set(attempt)
        try:
            return await make()
        except (EngineAway, OutOfMemoryError, Overloaded) as error:
            attempt.reason = self._told(error, attempt)
            if attempt.reason is None:
                raise
        return await make()

    def _told(self, error: AlulaError, attempt: _Attempt) -> Reason | None:
        """Why something cheaper is to answer a request that failed, if it may."""
        stopping = isinstance(error, Overloaded) and error.draining
        if attempt.asked is None or attempt.instead or stopping or not self.possible:
            return None
        if isinstance(error, OutOfMemoryError):
            self._no_memory[attempt.asked.name] = self._clock()
            return "out-of-memory"
        return "overloaded" if isinstance(error, Overloaded) else "engine-away"

    def _look(self, service: Served) -> Reason | None:
        """Why something cheaper answers for a model now; a change of that is told in the log."""
        name = service.name
        before = self._courses.get(name, Course())
        signs = Signs(
            there=self._own.state == "ready",
            wait_s=service.wait_s or 0.0,
            no_memory_at=self._no_memory.get(name),
        )
        course = self._courses[name] = before.after(signs, self._enter_s, self._clock())
        if course.reason != before.reason:
            tier = tier_of(self._substitutes[name])
            if course.reason:
                log.warning("%s is answered by its fallback on %s: %s", name, tier, course.reason)
            else:
                log.warning("%s is answered by its own engine again", name)
        return course.reason


def tier_of(service: Served) -> str:
    """By what a substitute answers, in a word: its engine, or that there are three of them."""
    if isinstance(service, LineReader):
        return "pipeline"
    return service.bundle.answering.backend


def substitutes(
    services: Sequence[Served], beside: Sequence[Served], options: ServeOptions
) -> dict[str, Served]:
    """What stands in for each of the served models; for those that read pages three that do so together may."""
    named = {service.name for service in services}
    found: dict[str, Served] = {each.name: each for each in beside if each.name in named}
    if trio := trio_of(beside):
        reader = LineReading(options).by(trio)
        found |= {service.name: reader for service in services if service.spec.sees}
    return found


def lacking(substitute: ModelSpec, served: ModelSpec) -> list[str]:
    """Outputs of a served model that what is to stand in for it does not give."""
    given = {output.name for output in substitute.parts[0].outputs}
    return [output.name for output in served.parts[0].outputs if output.name not in given]


def standing_in(bundle: Bundle, services: Sequence[Served]) -> Bundle:
    """A bundle under the name of the served model whose checkpoint it is of, for which it stands in.

    The parts of a pipeline keep their names: together they stand in for whatever reads pages.
    """
    if bundle.root.name in PIPELINE and any(service.spec.sees for service in services):
        return bundle
    for service in services:
        spec = service.bundle.model
        if (spec.digest, spec.task) == (bundle.model.digest, bundle.model.task):
            if lacks := lacking(bundle.model, spec):
                hint = ": build it with --token-embeddings, too" if lacks == [TOKENS] else ""
                raise InputError(
                    f"{bundle.root}: gives no {', '.join(lacks)}, which {service.name} gives, and so cannot stand in "
                    f"for it{hint}"
                )
            model = replace(bundle.model, name=service.name)
            return replace(bundle, manifest=replace(bundle.manifest, model=model))
    served = ", ".join(f"{service.name} ({service.spec.task})" for service in services)
    raise InputError(
        f"{bundle.root}: is of {bundle.model.name} ({bundle.model.task}) and stands in for no served model; "
        f"expected a bundle of the same checkpoint as one of: {served}"
    )
