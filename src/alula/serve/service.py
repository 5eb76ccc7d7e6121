"""One served model, and the catalogue of all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from alula.batching import Batcher, BatchPolicy, Ran
from alula.bundles import Bundle
from alula.codecs import Row, TextCodec, fit, row_outputs, within
from alula.core.errors import InputError
from alula.core.model import ModelSpec
from alula.core.profile import Profile
from alula.core.tensor import Feeds
from alula.core.words import TENSORS
from alula.serve.errors import Refused
from alula.serve.opening import PART
from alula.serve.options import ServeOptions

T = TypeVar("T")
Run: TypeAlias = Callable[[Feeds], Awaitable[Feeds]]

INLINE_CHARACTERS = 4_000
"""Longer texts are tokenised in a thread, so that short requests do not stand behind them."""


class Service:
    """A bundle being served: its codec, and the batcher in front of its engine."""

    def __init__(
        self, bundle: Bundle, run: Run, options: ServeOptions, observe: Callable[[str, Ran], None]
    ) -> None:
        if bundle.model.task == TENSORS:
            raise InputError(
                f"{bundle.root}: models that take arrays are not served; ask with alula run BUNDLE --feeds FILE.npz"
            )
        if not bundle.model.reads_text:
            raise InputError(
                f"{bundle.root}: models that read images are not served yet; ask with alula run BUNDLE --image FILE"
            )
        engine = bundle.engine(PART)
        self.bundle = bundle
        self.spec = within(bundle.model, engine.plan.profile)
        self.codec = TextCodec.open(bundle.tokenizer, self.spec)
        self._profile = engine.plan.profile
        self._run = run
        self.policy = policy(self.spec, self._profile, options)
        self.batcher: Batcher[Row, Feeds] = Batcher(
            self._call, self.policy, observe=lambda ran: observe(self.name, ran)
        )
        self._max_client_batch = options.max_client_batch

    @property
    def name(self) -> str:
        """What requests call the model."""
        return self.spec.name

    async def answer(
        self, count: int, characters: int, encode: Callable[[], Sequence[Row]]
    ) -> tuple[Sequence[Row], list[Feeds]]:
        """The rows of one request and their outputs; refused before any work if they are too many."""
        if count < 1:
            raise InputError("the list of inputs is empty; expected at least one")
        if count > self._max_client_batch:
            raise Refused(f"{count} inputs in one request; the limit is {self._max_client_batch}", status=413)
        self.batcher.refuse_unless_room(count)
        rows = await self._encoded(characters, encode)
        return rows, await self.batcher.submit(rows, [max(len(row.ids), 1) for row in rows])

    async def _encoded(self, characters: int, encode: Callable[[], Sequence[Row]]) -> Sequence[Row]:
        if characters <= INLINE_CHARACTERS:
            return encode()
        return await asyncio.get_running_loop().run_in_executor(None, encode)

    async def _call(self, rows: list[Row]) -> list[Feeds]:
        outputs = await self._run(fit(rows, self.spec, self._profile))
        return list(row_outputs(outputs, rows, self.spec))


def policy(spec: ModelSpec, profile: Profile, options: ServeOptions) -> BatchPolicy:
    """The limits of the engine and of the server together; a batch always holds one row of full length."""
    return BatchPolicy(
        max_rows=profile.axes["batch"].max,
        max_cells=max(options.max_batch_tokens, spec.max_length),
        max_waiting_rows=max(options.max_waiting_rows, options.max_client_batch),
        max_waiting_tokens=max(options.max_waiting_tokens, options.max_client_batch * spec.max_length),
        steps=tuple((part.axes["length"].max, part.axes["batch"].max) for part in profile.tuned),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalogue:
    """Every service, in the order the bundles were named."""

    services: tuple[Service, ...]

    def __post_init__(self) -> None:
        names = [service.name for service in self.services]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InputError(f"two bundles hold the model {twice[0]!r}; serve one of them")

    def pick(self, tasks: tuple[str, ...], model: str | None) -> Service:
        """The named model, or the first one that does one of the tasks."""
        wanted = " or ".join(tasks)
        if model is None:
            for service in self.services:
                if service.spec.task in tasks:
                    return service
            raise Refused(f"no model here does {wanted}; served: {self._served()}", status=404)
        service = self.named(model)
        if service.spec.task not in tasks:
            raise Refused(
                f"model {model!r} does {service.spec.task}, not {wanted}; served: {self._served()}",
                status=400,
            )
        return service

    def named(self, model: str) -> Service:
        """The model with this name, or whose bundle lies in a folder of this name."""
        for service in self.services:
            if model in {service.name, service.bundle.root.name}:
                return service
        raise Refused(
            f"model {model!r} is not served; served: {self._served()}", status=404, code="model_not_found"
        )

    def _served(self) -> str:
        return ", ".join(f"{service.name} ({service.spec.task})" for service in self.services)
