"""Every served model, and which of them a request is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from alula.bundles import Bundle
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.serve.errors import Refused


class Served(Protocol):
    """A bundle being served."""

    @property
    def bundle(self) -> Bundle:
        """What is served."""
        ...

    @property
    def spec(self) -> ModelSpec:
        """The model, held to what its engine takes."""
        ...

    @property
    def name(self) -> str:
        """What requests call the model."""
        ...

    @property
    def waiting(self) -> int:
        """Rows that wait for a batch."""
        ...

    @property
    def wait_s(self) -> float | None:
        """How long what waits takes, by what was measured; None where nothing was."""
        ...

    @property
    def limits(self) -> Mapping[str, Any]:
        """What `/info` says of it beside what it says of every model."""
        ...

    def at_work(self) -> AbstractAsyncContextManager[object]:
        """Requests are answered as long as this lasts, and those that were admitted at its end."""
        ...


S = TypeVar("S", bound=Served)


def itself(service: Served, kind: type[object]) -> Served:
    """Nobody else answers for it."""
    return service


def _nobody_asks(service: Served) -> None:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalogue:
    """Every service, in the order the bundles were named.

    `taken` is told of each one that a request is for, and `instead` says who answers for it at the moment,
    if that is a service of the kind that is needed.
    """

    services: tuple[Served, ...]
    taken: Callable[[Served], None] = _nobody_asks
    instead: Callable[[Served, type[object]], Served] = itself

    def __post_init__(self) -> None:
        names = [service.name for service in self.services]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InputError(
                f"two bundles hold the model {twice[0]!r}; serve one of them, or build "
                "one with another --name"
            )

    def pick(self, kind: type[S], tasks: tuple[str, ...], model: str | None) -> S:
        """As `doing`, where one kind of service does all of the tasks."""
        service = self.doing(tasks, model, kind)
        assert isinstance(service, kind), f"{service.spec.task} is done by {type(service).__name__}"
        return service

    def doing(self, tasks: tuple[str, ...], model: str | None, kind: type[object] = object) -> Served:
        """The named model, or the first one that does one of the tasks; or who answers for it, if of this kind."""
        wanted = " or ".join(tasks)
        if model is None:
            for service in self.services:
                if service.spec.task in tasks:
                    return self.take(service, kind)
            raise Refused(f"no model here does {wanted}; served: {self._served()}", status=404)
        service = self.named(model)
        if service.spec.task not in tasks:
            raise Refused(
                f"model {model!r} does {service.spec.task}, not {wanted}; served: {self._served()}",
                status=400,
            )
        return self.take(service, kind)

    def take(self, service: Served, kind: type[object] = object) -> Served:
        """Who answers a request that is for this service: itself, or what stands in for it."""
        self.taken(service)
        return self.instead(service, kind)

    def named(self, model: str) -> Served:
        """The model with this name, or whose bundle lies in a folder of this name."""
        for service in self.services:
            if model in {service.name, service.bundle.root.name}:
                return service
        raise Refused(
            f"model {model!r} is not served; served: {self._served()}", status=404, code="model_not_found"
        )

    def _served(self) -> str:
        return ", ".join(f"{service.name} ({service.spec.task})" for service in self.services)
