"""Pages read line by line by three models that are served: one finds lines, one says how they stand, one reads them.

What decides is `ocr/pipeline.py`, in a thread for each page; what its models are given goes to the engine process as
batches between those of other requests.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from alula.bundles import Bundle
from alula.core.errors import Overloaded, RunError
from alula.core.model import ModelSpec
from alula.core.tensor import Feeds
from alula.core.words import PIPELINE
from alula.documents import Page, Scan
from alula.ocr.pipeline import DETECT, RECOGNISE, TURN, UPSIDE_DOWN, Part, Pipeline
from alula.serve.catalogue import Served
from alula.serve.decoding import Decoders
from alula.serve.opening import PART
from alula.serve.options import ServeOptions
from alula.serve.pages import Pages
from alula.serve.pictures import Pictures, Uploaded
from alula.serve.records import current
from alula.serve.uploads import Upload

T = TypeVar("T")

READERS = 2
"""Pages that are read at a time; their batches take turns in the engine process."""

TASKS = Pipeline.tasks


@dataclass(frozen=True, kw_only=True, slots=True)
class Trio:
    """The models that read pages together."""

    detect: Pages
    turn: Pictures
    recognise: Pictures

    @property
    def name(self) -> str:
        """What requests call all three."""
        return self.recognise.name

    @property
    def names(self) -> set[str]:
        """What else they may call them."""
        both = (self.detect, self.recognise)
        return {*(name for each in both for name in (each.name, each.bundle.root.name)), *self._folder}

    @property
    def _folder(self) -> set[str]:
        """The name of the pipeline's folder, where all three lie in one."""
        roots = [each.bundle.root.absolute() for each in (self.detect, self.turn, self.recognise)]
        whole = tuple(root.name for root in roots) == PIPELINE and len({root.parent for root in roots}) == 1
        return {roots[0].parent.name} if whole else set()


def trio_of(services: Sequence[Served]) -> Trio | None:
    """The first model of each kind, if there is one of every kind."""
    detect = next((each for each in services if isinstance(each, Pages)), None)
    pictures = [each for each in services if isinstance(each, Pictures)]
    recognise = next((each for each in pictures if each.spec.task == "text-recognition"), None)
    turn = next(
        (each for each in pictures if UPSIDE_DOWN in each.spec.labels and len(each.spec.labels) == 2), None
    )
    if detect is None or recognise is None or turn is None:
        return None
    return Trio(detect=detect, turn=turn, recognise=recognise)


class LineReading:
    """Who reads pages so, how many at a time, and how many may wait."""

    def __init__(self, options: ServeOptions) -> None:
        self._most = options.max_waiting
        self._decoders = Decoders(options)
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
        self._pages = 0

    @property
    def pages(self) -> int:
        """That are being read or wait."""
        return self._pages

    def by(self, trio: Trio) -> LineReader:
        """A reader of these models."""
        return LineReader(self, trio)

    def refuse_unless_room(self, pages: int) -> None:
        """Refuse so many pages more for now."""
        if self._pages + pages > self._most:
            raise Overloaded(f"{self._pages} pages are being read or wait, and {self._most} is the limit")

    async def aside(self, work: Callable[[], T]) -> T:
        """What is done to an image, in the threads that decode them."""
        return await self._decoders.run(work)

    @property
    def decoders(self) -> Decoders:
        """Those threads."""
        return self._decoders

    async def read(self, work: Callable[[], T]) -> T:
        """One page, once a thread is free."""
        self._pages += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._pages -= 1


class LineReader:
    """Reads pages with three models; stands where a model that writes what it reads stands otherwise."""

    def __init__(self, reading: LineReading, trio: Trio) -> None:
        self._reading, self._trio = reading, trio

    @property
    def name(self) -> str:
        """What the answer calls it."""
        return self._trio.name

    @property
    def bundle(self) -> Bundle:
        """That of the model that reads."""
        return self._trio.recognise.bundle

    @property
    def spec(self) -> ModelSpec:
        """Likewise."""
        return self._trio.recognise.spec

    @property
    def waiting(self) -> int:
        """Pages that wait for those before them."""
        return max(0, self._reading.pages - READERS)

    @property
    def wait_s(self) -> float | None:
        """Nothing was measured."""
        return None

    @property
    def limits(self) -> Mapping[str, Any]:
        """Which tasks there are."""
        return {"tasks": list(TASKS)}

    def at_work(self) -> AbstractAsyncContextManager[object]:
        """The three models are."""
        return nullcontext()

    @property
    def most_image_pixels(self) -> int:
        """What an image may have."""
        return self._reading.decoders.most_pixels

    def refuse_unless_room(self, pages: int) -> None:
        """Refuse so many pages before anybody works on them."""
        self._reading.refuse_unless_room(pages)

    async def room(self, *, covered: bool = False) -> None:
        """Pages of a document that has begun wait for a thread, and for nothing else."""

    async def sizes(self, images: Sequence[Upload]) -> list[int]:
        """The pixels of each image by its head."""
        return await self._reading.decoders.sizes(images)

    @contextmanager
    def expecting(self, pixels: int) -> Iterator[None]:
        """So many pixels are on their way as long as this lasts."""
        with self._reading.decoders.expecting(pixels):
            yield

    async def aside(self, work: Callable[[], T]) -> T:
        """What is done to an image, in the threads that decode them."""
        return await self._reading.aside(work)

    async def read(self, scan: Scan) -> Page:
        """One page; of one that nobody waits for any more no further batch is run."""
        loop, left = asyncio.get_running_loop(), threading.Event()
        current().asked(self.name, 1)
        trio = self._trio
        parts = {
            name: Part(bundle=each.bundle, engine=each.bundle.engine(PART), run=_within(each, loop, left))
            for name, each in ((DETECT, trio.detect), (TURN, trio.turn), (RECOGNISE, trio.recognise))
        }
        try:
            return await self._reading.read(lambda: Pipeline(self.name, parts).page(scan))
        finally:
            left.set()


def _within(
    service: Uploaded[Any], loop: asyncio.AbstractEventLoop, left: threading.Event
) -> Callable[[Feeds], Feeds]:
    """What runs a batch from another thread, and waits for it."""

    def run(feeds: Feeds) -> Feeds:
        if left.is_set():
            raise RunError("nobody waits for the page any more")
        running: Awaitable[Feeds] = service.straight(feeds)
        return asyncio.run_coroutine_threadsafe(_awaited(running), loop).result()

    return run


async def _awaited(running: Awaitable[Feeds]) -> Feeds:
    return await running
