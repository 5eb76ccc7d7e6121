"""Documents of many pages: opened in processes beside, read in the running batch, given page by page in their order."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from alula.codecs import to_jpeg
from alula.core.errors import AlulaError, InputError, Overloaded
from alula.documents import Notice, Page, Scan, page_to_json
from alula.documents.formats import SCHEMA
from alula.ocr.loading import Lost, Selection, Taking, kind_of_bytes
from alula.ocr.pool import Taken, taken
from alula.ocr.stream import outcome, readable
from alula.serve.deadlines import Deadline
from alula.serve.events import Events
from alula.serve.page_reading import Asked, read
from alula.serve.uploads import Upload

MOST_DOCUMENTS = 4
"""That are read at once: each has a process that opens it, its file on disk, and its pages in memory."""

PAGES_AT_ONCE = 4
"""Of one document that are read, or are read and wait for one before them."""

PICTURE_SIDE = 1_600
"""The longer side of a page's picture that is sent along, in pixels at most."""


def _never() -> bool:
    return False


class Documents:
    """How many documents are being read, of a server that may have been `stopped`. For any thread."""

    def __init__(self, most: int = MOST_DOCUMENTS, *, stopped: Callable[[], bool] = _never) -> None:
        self._most = most
        self.stopped = stopped
        self._free = threading.BoundedSemaphore(most)

    def enter(self) -> Callable[[], None]:
        """Let one more in, or refuse it for now; gives what lets it out."""
        if not self._free.acquire(blocking=False):
            raise Overloaded(f"{self._most} documents are being read, and that is the limit")
        return self._free.release


class Opened:
    """An uploaded document, whose pages a process opens, ahead of whoever takes them. Close it; that waits for nothing.

    The file lies in a folder of its own until then. What is asked of it is done in one thread, after one another.
    """

    def __init__(self, file: Upload, selection: Selection, taking: Taking, documents: Documents) -> None:
        self._file, self._selection, self._taking = file, selection, taking
        self.documents, self._leave = documents, documents.enter()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="document")
        self._pages: Generator[Taken] | None = None
        self._closed = False

    async def next(self) -> Taken | None:
        """The next page, or why it could not be taken; None after the last."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._next)

    def close(self) -> None:
        """End its process and remove its file, once the page that it works on is done. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._thread.submit(self._end)
            self._thread.shutdown(wait=False)

    def _next(self) -> Taken | None:
        if self._pages is None:
            self._pages = self._taken()
        return next(self._pages, None)

    def _end(self) -> None:
        try:
            if self._pages is not None:
                self._pages.close()
        finally:
            self._leave()

    def _taken(self) -> Generator[Taken]:
        with _on_disk(self._file) as path:
            self._file = replace(self._file, content=b"")
            for one in taken([str(path)], self._selection, self._taking):
                if isinstance(one, Lost):
                    message = one.message.replace(str(path), self._file.name)
                    yield replace(one, source=self._file.name, message=message)
                else:
                    yield replace(one, source=self._file.name)


@contextmanager
def _on_disk(file: Upload) -> Generator[Path]:
    with TemporaryDirectory(prefix="alula-") as folder:
        path = Path(folder) / "document"
        path.write_bytes(file.content)
        yield path


async def document(  # noqa: PLR0913 - what a request may say
    documents: Documents,
    asked: Asked,
    selection: Selection,
    password: str | None,
    deadline: Deadline,
    *,
    pictures: bool = False,
) -> Events:
    """A document's pages as they are read, in their order, and a summary; refused while nothing of it was sent.

    With `pictures` each page comes behind its picture. Raises InputError for a file that cannot be opened. Whoever
    has it must close it.
    """
    asked.writer.refuse_unless_room(1)
    if kind_of_bytes(asked.file.content) == "video":
        raise InputError(f"{asked.file.name} is a video; expected a PDF or an image")
    opened = Opened(asked.file, selection, asked.taking(password=password), documents)
    try:
        first = await opened.next()
    except BaseException:
        opened.close()
        raise
    if isinstance(first, Lost) and first.index is None:
        opened.close()
        raise InputError(first.message)
    without_content = replace(asked, file=replace(asked.file, content=b""))
    reading = _Reading(without_content, opened, first, deadline, pictures=pictures)
    return Events(objects=reading.lines(), close=reading.close)


class _Reading:
    """One document on its way through the batch."""

    def __init__(
        self,
        asked: Asked,
        opened: Opened,
        first: Taken | None,
        deadline: Deadline,
        *,
        pictures: bool,
    ) -> None:
        self._asked, self._opened, self._deadline, self._pictures = asked, opened, deadline, pictures
        self._line: asyncio.Queue[asyncio.Task[tuple[Page, bytes | None]] | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(PAGES_AT_ONCE)
        self._pages: set[asyncio.Task[tuple[Page, bytes | None]]] = set()
        self._begun = monotonic()
        self._feeding = asyncio.ensure_future(self._feed(first))

    async def lines(self) -> AsyncIterator[list[Mapping[str, Any]]]:
        """Each page as the schema has it, and last what came of all."""
        count, failed, skipped, degraded = 0, 0, 0, 0
        while (reading := await self._in_time(self._line.get())) is not None:
            page, picture = await self._in_time(reading)
            count, failed = count + 1, failed + page.noticed("failed")
            skipped, degraded = skipped + page.noticed("skipped"), degraded + page.noticed("degraded")
            yield [*([] if picture is None else [_shown(page, picture)]), page_to_json(page)]
            self._room.release()
        await self._feeding
        summary = {
            "schema": SCHEMA,
            "source": self._asked.file.name,
            "task": self._asked.ask.task,
            "model": self._asked.own.name,
            "pages": count,
            "failed": failed,
            "skipped": skipped,
            "degraded": degraded,
            "seconds": round(monotonic() - self._begun, 3),
        }
        yield [{"summary": summary}]

    def close(self) -> None:
        """Have cancelled what is not read."""
        self._feeding.cancel()
        for reading in self._pages:
            reading.cancel()
        self._opened.close()

    async def _feed(self, one: Taken | None) -> None:
        """Begin pages as there is room for them."""
        try:
            while one is not None:
                await self._room.acquire()
                reading = asyncio.ensure_future(self._pictured(one))
                self._pages.add(reading)
                reading.add_done_callback(self._pages.discard)
                self._line.put_nowait(reading)
                one = await self._opened.next()
        finally:
            self._opened.close()
            self._line.put_nowait(None)

    async def _pictured(self, one: Taken) -> tuple[Page, bytes | None]:
        """A page, and its picture where that is asked for and the page could be opened."""
        picture = None
        if self._pictures and isinstance(one, Scan):
            pixels = one.pixels
            picture = await self._asked.writer.aside(lambda: to_jpeg(pixels, within=PICTURE_SIDE))
        return await self._page(one), picture

    async def _page(self, one: Taken) -> Page:
        if not isinstance(one, Scan) or not readable(one):
            done = outcome(one)
            assert not isinstance(done, Lost), "only a whole file has no page"
            return done.page
        try:
            return await self._asked.degrading.answered(lambda: self._read(one))
        except AlulaError as error:
            if self._opened.documents.stopped():  # no fault of the page: what was read is all there will be
                what = f"page {one.index + 1} was not read, nor were those after it: the server was stopped"
                raise Overloaded(what, draining=True) from error
            return Page.of(one, notices=(Notice(code="failed", message=str(error)),))

    async def _read(self, scan: Scan) -> Page:
        """Read by whoever does so now: what stands in for a model does that page by page."""
        asked = self._asked.now()
        await asked.writer.room(covered=asked.covered)
        return await read(asked, scan, waits=True)

    async def _in_time(self, work: Any) -> Any:
        """What comes of something, before the client's time is over."""
        waiting = asyncio.ensure_future(work)
        try:
            done, _ = await asyncio.wait({waiting}, timeout=self._deadline.left(monotonic()))
            if not done:
                raise self._deadline.missed()
            return waiting.result()
        finally:
            waiting.cancel()


def _shown(page: Page, picture: bytes) -> dict[str, Any]:
    """The line before a page, with its picture."""
    data = f"data:image/jpeg;base64,{base64.b64encode(picture).decode('ascii')}"
    return {"picture": {"index": page.index, "data": data}}
