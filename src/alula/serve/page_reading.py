"""Pages read by a served model that writes: what a request asks of them, and one page's answer in the running batch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

from alula.codecs import MOST_PIXELS, count_sheets
from alula.core.errors import InputError
from alula.documents import TASKS, Notice, Page, Scan, Task
from alula.generate import Request
from alula.ocr.answers import Written, page_of, plainer, untaught
from alula.ocr.hunyuan import bounded, version_of
from alula.ocr.loading import Taking, decoded, kind_of_bytes, looked_at
from alula.ocr.odds import Odds
from alula.ocr.prompts import prompt
from alula.ocr.reader import MAX_TOKENS, PICTURES, Ask
from alula.ocr.repetition import Guard
from alula.ocr.stream import readable
from alula.serve.bodies import Fields
from alula.serve.catalogue import Catalogue
from alula.serve.degrading import Degrading, tier_of
from alula.serve.errors import Refused
from alula.serve.line_reading import TASKS as TASKS_BY_LINES
from alula.serve.line_reading import LineReader, LineReading, Trio, trio_of
from alula.serve.records import current
from alula.serve.uploads import Upload, images
from alula.serve.writer import Answers, Writer

PAGE_PIXELS = 16_000_000
"""What a page is made smaller to, or rendered in: an A4 sheet at 400 dpi, and the most that HunyuanOCR 1.5 reads."""

MOST_ASKED_CHARACTERS = 10_000
"""Of a question, or of the names of fields together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a request asks of a file, of which model, and who reads: that one, or what stands in `because` of something.

    `told` is what the model itself is told, in either case.
    """

    own: Writer | LineReader
    writer: Writer | LineReader
    ask: Ask
    told: str
    file: Upload
    degrading: Degrading
    because: str = ""

    @property
    def covered(self) -> bool:
        """Whether something else reads a page if the model cannot; that need not do more than read lines."""
        able = isinstance(self.own, Writer) and self.ask.task in TASKS_BY_LINES and not self.because
        return able and self.degrading.substitute(self.own, object) is not None

    def now(self) -> Asked:
        """The same, read by whoever reads now."""
        own = replace(self, writer=self.own, because="")
        if not own.covered:
            return own
        writer = self.degrading.instead(self.own, object)
        assert isinstance(writer, Writer | LineReader), f"{writer.name} reads no pages"
        return own if writer is self.own else replace(own, writer=writer, because=current().because)

    @property
    def known(self) -> tuple[Notice, ...]:
        """What is to be said of a page before it is read."""
        said = untaught(self.writer.name, self.writer.spec.taught, self.ask)
        if not self.because:
            return said
        instead = f"{self.own.name} could not read it ({self.because}); read by: {self.tier}"
        return (*said, Notice(code="degraded", message=instead))

    @property
    def tier(self) -> str:
        """By what a page is read, in a word."""
        return tier_of(self.writer)

    def taking(self, **more: Any) -> Taking:
        """How its pages are taken, within what the server allows."""
        most = self.writer.most_image_pixels
        return Taking(
            skip=self.ask.task not in PICTURES,
            page_pixels=min(PAGE_PIXELS, most),
            most_pixels=min(MOST_PIXELS, most),
            **more,
        )


def asked(catalogue: Catalogue, degrading: Degrading, lines: LineReading, fields: Fields) -> Asked:
    """The fields of both routes; those of one of them alone must have been asked for by now."""
    own = _reader(catalogue, lines, fields.maybe("model", str))
    ask = Ask(
        task=_task(fields.get("task", str, "text")),
        fields=_names(fields.some(("fields",)).get("fields", "")),
        to=fields.get("to", str, ""),
        question=fields.get("question", str, ""),
        language="zh" if fields.word("prompt", ("en", "zh")) == "zh" else "en",
        max_tokens=fields.get("max_tokens", int, MAX_TOKENS),
    )
    if len(ask.question) + sum(map(len, ask.fields)) > MOST_ASKED_CHARACTERS:
        raise InputError(f"question or fields have more than {MOST_ASKED_CHARACTERS} characters")
    files, _ = images(fields.any("inputs"))
    fields.done()
    if len(files) != 1:
        raise InputError(f"{len(files)} files in one request; expected one")
    if isinstance(own, LineReader) and ask.task not in TASKS_BY_LINES:
        does = ", ".join(TASKS_BY_LINES)
        raise InputError(f"task is {ask.task!r}; {own.name} reads lines, and does: {does}")
    told = "" if isinstance(own, LineReader) else prompt(ask, version_of(own.prompts))
    return Asked(own=own, writer=own, ask=ask, told=told, file=files[0], degrading=degrading).now()


async def one_page(asked: Asked) -> tuple[Page, Scan]:
    """The page of an image; refused before it is decoded where there is no room to read it."""
    asked.writer.refuse_unless_room(1)
    _refuse_unless_image(asked.file)
    with asked.writer.expecting(sum(await asked.writer.sizes([asked.file]))):
        scan = await asked.writer.aside(lambda: _scan(asked))
    return (await read(asked, scan) if readable(scan) else Page.of(scan)), scan


async def read(asked: Asked, scan: Scan, *, waits: bool = False) -> Page:
    """A page read in the running batch, which is waited for or refuses; leaving it cancels the answer.

    Where something else can read it, an engine that is being started again is not waited for: that is EngineAway.
    """
    page = await _read(asked, scan, waits)
    if asked.because and isinstance(asked.own, Writer):
        asked.own.relieved(asked.tier)
    return page


async def _read(asked: Asked, scan: Scan, waits: bool) -> Page:
    writer, begun = asked.writer, perf_counter()
    if isinstance(writer, LineReader):
        page = await writer.read(scan)
        return replace(page, notices=(*page.notices, *asked.known))
    patches = await writer.aside(lambda: writer.prompts.patches(scan.pixels))
    waiting = partial(writer.write_in_time, covered=asked.covered)

    async def answer(ask: Ask, told: str) -> Written:
        request = bounded(writer.prompts.look(told, [patches]), ask, writer.prompts)
        return await _written(waiting if waits else writer.write, request)

    ask, known, written = asked.ask, asked.known, await answer(asked.ask, asked.told)
    if (other := plainer(ask, written)) is not None:
        ask, known = other[0], (*known, other[1])
        written = await answer(ask, prompt(ask, version_of(writer.prompts)))
    timings = {"read_ms": (perf_counter() - begun) * 1e3}
    return await writer.made(
        len(written.text), lambda: page_of(scan, written, ask, known=known, timings=timings)
    )


async def _written(write: Callable[[Sequence[Request]], Awaitable[Answers]], request: Request) -> Written:
    """The answer; a loop is ended as it is written."""
    guard, odds, ending = Guard(), Odds(), None
    answers = await write([request])
    try:
        while taken := await answers.take():
            for _, piece in taken:
                ending = piece.ending
                loop = guard.push(piece.text)
                odds.push(piece, len(guard.text))
                if loop:
                    return Written(text=guard.text, loop=loop, odds=odds)
        return Written(text=guard.text, cut=ending == "length", odds=odds)
    finally:
        answers.close()


def _refuse_unless_image(file: Upload) -> None:
    if (kind := kind_of_bytes(file.content)) != "image":
        found = (
            "a PDF; expected an image (/ocr/pdf takes PDFs)"
            if kind == "pdf"
            else "a video; expected an image"
        )
        raise InputError(f"{file.name} is {found}")


def _scan(asked: Asked) -> Scan:
    """An image's one page, upright and looked at."""
    begun, (content, name) = perf_counter(), (asked.file.content, asked.file.name)
    if (pages := count_sheets(content, name)) > 1:
        raise InputError(f"{name} has {pages} pages; expected one: send it to /ocr/pdf")
    scan = decoded(content, name, 0, asked.taking())
    loaded = perf_counter()
    scan = looked_at(scan, asked.taking())
    timings = {"load_ms": (loaded - begun) * 1e3, "look_ms": (perf_counter() - loaded) * 1e3}
    return replace(scan, timings=timings)


def _reader(catalogue: Catalogue, lines: LineReading, model: str | None) -> Writer | LineReader:
    """The named model, or the first one that reads pages; or three that do so together."""
    trio = trio_of(catalogue.services)
    if trio is not None and model in trio.names:
        return _all_three(catalogue, lines, trio)
    if model is None:
        for service in catalogue.services:
            if isinstance(service, Writer) and service.spec.sees:
                catalogue.taken(service)
                return service
        if trio is not None:
            return _all_three(catalogue, lines, trio)
        raise Refused(
            "no model here reads pages; serve a bundle of HunyuanOCR, or the three of alula build rapidocr -o FOLDER",
            status=404,
        )
    service = catalogue.named(model)
    if not (isinstance(service, Writer) and service.spec.sees):
        raise Refused(f"model {model!r} does {service.spec.task}, and reads no pages", status=400)
    catalogue.taken(service)
    return service


def _all_three(catalogue: Catalogue, lines: LineReading, trio: Trio) -> LineReader:
    for service in (trio.detect, trio.turn, trio.recognise):
        catalogue.taken(service)
    return lines.by(trio)


def _task(said: str) -> Task:
    for task in TASKS:
        if task == said:
            return task
    raise InputError(f"task is {said!r}; expected one of: {', '.join(TASKS)}")


def _names(said: Any) -> tuple[str, ...]:
    """Names in a list, or in one text between commas."""
    if isinstance(said, str):
        return tuple(name.strip() for name in said.split(",")) if said else ()
    if not isinstance(said, list) or not all(isinstance(name, str) for name in said):
        raise InputError('fields is no list of texts; expected ["name", "date"], or "name,date"')
    return tuple(said)
