"""A served model that writes text: who is let into its line, and what comes of an answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from itertools import takewhile
from math import ceil
from time import monotonic
from typing import Any, TypeVar

from alula.batching import Pace
from alula.bundles import Bundle
from alula.codecs import Patches, decode
from alula.core.errors import AlulaError, EngineError, Overloaded
from alula.generate import Piece, Request
from alula.prompting import Prompts
from alula.serve import terms
from alula.serve.aside import tokenized
from alula.serve.decoding import Decoders
from alula.serve.errors import Refused
from alula.serve.exchange import EngineAway
from alula.serve.fleet import Fleet
from alula.serve.metrics import Metrics
from alula.serve.options import ServeOptions
from alula.serve.records import Record, current
from alula.serve.streams import Stream
from alula.serve.uploads import Upload

T = TypeVar("T")

CHATS = ("text-generation",)
"""Tasks whose models take messages, if their checkpoints say how."""

MOST_SEEN_BYTES = 1 << 30
"""Of images cut up, for all answers of a model that are written or wait: a page of 2048 x 2048 has 50 MB."""

ROOM_S = 0.05
"""Between two looks for room."""


class Writer:
    """A bundle being served whose model writes; `model` is its place in the engine process."""

    def __init__(
        self, bundle: Bundle, model: int, engines: Fleet, options: ServeOptions, metrics: Metrics
    ) -> None:
        self.bundle = bundle
        self.spec = bundle.model
        self.prompts = Prompts.open(bundle)
        self._model = model
        self._engines = engines
        self._options = options
        self._metrics = metrics
        self._seen: dict[Stream, int] = {}
        self._pace, self._last_end = Pace(), 0.0
        self._decoders = Decoders(options)

    @property
    def name(self) -> str:
        """What requests call the model."""
        return self.spec.name

    @property
    def waiting(self) -> int:
        """No rows: answers that wait have a gauge of their own."""
        return 0

    @property
    def wait_s(self) -> float | None:
        """How long those answers take that wait for others to end."""
        waiting = self._engines.writing(self._model) - self._options.max_sequences
        return self._pace.seconds_for(max(0, waiting))

    @property
    def limits(self) -> Mapping[str, Any]:
        """What an answer may be long, how many are written at once, whether it takes messages, and images in them."""
        return {
            "max_total_tokens": self.prompts.positions,
            "max_sequences": self._options.max_sequences,
            "chat": self.spec.task in CHATS and self.prompts.template is not None,
            "reads_images": self.spec.sees,
        }

    def at_work(self) -> AbstractAsyncContextManager[object]:
        """The engine process is all that is needed; it learns here what one sequence may hold."""
        self.prompts = self.prompts.within(self._engines.opened(self._model).holds)
        return contextlib.nullcontext()

    async def looked(self, images: Sequence[Upload]) -> list[Patches]:
        """Images as the model reads them, each held to its limit before it is decoded."""
        if len(images) > self._options.max_client_batch:
            raise Refused(
                f"{len(images)} images in one request; the limit is {self._options.max_client_batch}",
                status=413,
            )
        return await self._decoders.each(images, self._cut_up)

    def expecting(self, pixels: int) -> AbstractContextManager[object]:
        """So many pixels of a page are on their way as long as this lasts."""
        return self._decoders.expecting(pixels)

    async def sizes(self, images: Sequence[Upload]) -> list[int]:
        """The pixels of each image by its head."""
        return await self._decoders.sizes(images)

    async def aside(self, work: Callable[[], T]) -> T:
        """What is done to an image, in the threads that decode them."""
        return await self._decoders.run(work)

    @property
    def most_image_pixels(self) -> int:
        """What an image may have."""
        return self._options.max_image_pixels

    def _cut_up(self, image: Upload) -> Patches:
        page = decode(image.content, image.name, most_pixels=self._options.max_image_pixels)
        return self.prompts.patches(page)

    async def made(self, characters: int, make: Callable[[], T]) -> T:
        """What is made of so many characters, in a thread if they are many."""
        return await tokenized(characters, make)

    def refuse_unless_room(self, answers: int) -> None:
        """Refuse so many answers before anybody works on them: for good, or for now."""
        most = self._options.opening.taken
        if answers > min(most, self._options.max_client_batch):
            raise Refused(
                f"{answers} answers in one request; the limit is {min(most, self._options.max_client_batch)}",
                status=413,
            )
        there = self._engines.writing(self._model)
        if there and there + answers > ceil(most * terms.current().share):
            raise Overloaded(
                f"{there} answers are being written or wait, and {most} is the limit",
                retry_s=self._pace.seconds_for(max(1, there + answers - most)),
            )

    async def room(self, *, covered: bool = False) -> None:
        """Wait for room for one more answer, and for an engine that is being started again; as long as one may take.

        Where something else answers meanwhile, the model is `covered`, and EngineAway is raised at once.
        """
        until = monotonic() + self._options.answer_timeout_s
        while True:
            if covered and self._engines.state != "ready":
                raise EngineAway(f"the engine is {self._engines.state}")
            try:
                self.refuse_unless_room(1)
            except Overloaded:
                if monotonic() >= until:
                    raise
            else:
                if self._engines.state == "ready" or not self._engines.live or monotonic() >= until:
                    return
            await asyncio.sleep(ROOM_S)

    async def write(self, requests: Sequence[Request]) -> Answers:
        """Put answers in the line, all of them or none; whoever has them must close them at last."""
        record = current()
        record.asked(self.name, 0)
        self.refuse_unless_room(len(requests))
        size = sum(array.nbytes for request in requests for array in request.seen.values())
        if size and size + (held := sum(self._seen.values())) > MOST_SEEN_BYTES:
            raise Overloaded(
                f"images of {held} bytes are being read or wait, and {MOST_SEEN_BYTES} is the limit; "
                f"these have {size}"
            )
        within_s = self._options.answer_timeout_s
        until = monotonic() + within_s
        seen = _Seen(self._metrics, record, len(requests), self._ended)
        stream = await self._engines.write(
            self._model, requests, within_s, seen.piece, terms.current().later_s
        )
        self._seen[stream] = size
        read = sum(request.read for request in requests)
        record.asked(self.name, len(requests))
        record.tokens += read
        self._metrics.prompts(self.name, read)
        return Answers(stream, until, within_s, self._close)

    async def write_in_time(self, requests: Sequence[Request], *, covered: bool = False) -> Answers:
        """As `write`, but waits for room as `room` does: others may have taken it meanwhile."""
        until = monotonic() + self._options.answer_timeout_s
        while True:
            await self.room(covered=covered)
            try:
                return await self.write(requests)
            except Overloaded:
                if monotonic() >= until:
                    raise
            await asyncio.sleep(ROOM_S)

    def relieved(self, tier: str) -> None:
        """Take note of a page that something cheaper read instead."""
        self._metrics.degraded_page(self.name, tier)

    def _ended(self, began: float, now: float) -> None:
        """Note an answer that has ended, and the time since the one before it, or since there was any."""
        self._pace = self._pace.after(1, now - max(began, self._last_end))
        self._last_end = now

    def _close(self, stream: Stream) -> None:
        self._seen.pop(stream, None)
        if count := self._engines.leave(stream):
            self._metrics.cancelled(self.name, count)


class Answers:
    """Answers of one request as they are written; any error of one is the error of all."""

    def __init__(
        self, stream: Stream, until: float, within_s: float, close: Callable[[Stream], None]
    ) -> None:
        self._stream = stream
        self._until = until
        self._within_s = within_s
        self._failed: AlulaError | None = None
        self._close = close

    async def take(self) -> list[tuple[int, Piece]]:
        """What has come, each with the place of its answer; nothing once all have ended.

        An error comes after what was written before it.
        """
        taken = [] if self._failed else await self._stream.take()
        good = list(takewhile(lambda come: not come[1].error, taken))
        if len(good) < len(taken):
            self._failed = self._error(taken[len(good)][1].error)
        if self._failed and not good:
            raise self._failed
        return good

    def close(self) -> None:
        """Have cancelled what is not ended."""
        self._close(self._stream)

    def _error(self, said: str) -> AlulaError:
        """The engine counts from when it reads of the request, so whatever it ends as late is late here too."""
        if monotonic() >= self._until:
            return Refused(
                f"the answer was not finished within {self._within_s:g} s", status=504, code="timeout"
            )
        return EngineError(said)


class _Seen:
    """Times of the answers of one request, told to the metrics and its record as pieces come from the engine."""

    def __init__(
        self, metrics: Metrics, record: Record, count: int, ended: Callable[[float, float], None]
    ) -> None:
        self._metrics = metrics
        self._record = record
        self._model = record.model
        self._ended = ended
        self._begin = monotonic()
        self._last = [monotonic()] * count
        self._begun = [False] * count

    def piece(self, at: int, piece: Piece) -> None:
        """One piece more."""
        if piece.ending:
            self._ended(self._begin, monotonic())
        if not piece.tokens:
            return
        now = monotonic()
        self._record.wrote(self._begin, now, len(piece.tokens), piece.waited_s)
        if piece.waited_s is not None:
            self._metrics.queued(self._model, piece.waited_s)
        seconds, self._last[at] = now - self._last[at], now
        self._metrics.written(self._model, len(piece.tokens), seconds, first=not self._begun[at])
        self._begun[at] = True
