"""The paths that read pages: one image whole, and a document page by page."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from alula.codecs import to_jpeg
from alula.documents import TEXT_FORMATS, Document, Page, Scan, document_to_json
from alula.ocr.loading import Selection
from alula.serve import bodies
from alula.serve.bodies import Fields
from alula.serve.deadlines import Deadline
from alula.serve.errors import failure_of
from alula.serve.events import Events, LineStream
from alula.serve.line_reading import LineReading
from alula.serve.page_reading import Asked, asked, one_page
from alula.serve.page_streams import Documents, document
from alula.serve.posting import Endpoint, Made, deadline_of, hurried, posted, reply, unless_gone
from alula.serve.server import Server
from alula.serve.uploads import fields_of, is_upload

Answer: TypeAlias = Callable[[Request, Fields, Deadline], Awaitable[Made]]

PAGE, DOCUMENT = "/ocr", "/ocr/pdf"
PATHS = (PAGE, DOCUMENT)

UNSAID_S = 7 * 86_400.0
"""For a client that does not say how long it waits: each page has its own limit, and documents have any length."""

FORMATS = ("json", "text", "md", "html")
"""Of one page; the first where nothing is said."""

KINDS = {"json": "application/json", "text": "text/plain", "md": "text/markdown", "html": "text/html"}


def routes(server: Server) -> list[Route]:
    """Both paths."""
    documents, lines = Documents(stopped=lambda: server.stopped), LineReading(server.options)

    async def page(request: Request, fields: Fields, deadline: Deadline) -> Response:
        given = fields.maybe("format", str) is not None
        form = fields.word("format", FORMATS) if given else accepted(request.headers.get("accept", ""))
        one = asked(server.catalogue, server.degrading, lines, fields)
        read, scan = await one_page(one)
        return await _written(one, read, scan, form)

    async def pages(request: Request, fields: Fields, deadline: Deadline) -> Events:
        said = fields.get("pages", str, "")
        password = fields.maybe("password", str)
        selection = Selection.parse(said) if said else Selection()
        pictures = fields.get("pictures", bool, default=False)
        one = asked(server.catalogue, server.degrading, lines, fields)
        return await document(documents, one, selection, password, deadline, pictures=pictures)

    return [
        Route(PAGE, _posted(server, page, "an image"), methods=["POST"]),
        Route(DOCUMENT, _posted(server, pages, "a PDF or an image"), methods=["POST"]),
    ]


def accepted(accept: str) -> str:
    """The format that a client would rather have, by its Accept header; JSON where it names none of them. Pure."""
    best, form = 0.0, FORMATS[0]
    for part in accept.split(","):
        kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weight = next((_weight(each[2:]) for each in parameters if each.startswith("q=")), 1.0)
        for name, its in KINDS.items():
            if kind == its and weight > best:
                best, form = weight, name
    return form


def _weight(said: str) -> float:
    try:
        return float(said)
    except ValueError:
        return 0.0


def _posted(server: Server, answer: Answer, wanted: str) -> Endpoint:
    async def answered(request: Request, body: bytes, take: Callable[[int], None]) -> Made:
        fields = _fields(request, body, wanted)
        hurried(fields)
        # Pages are answers that are written, and have their limit.
        deadline = deadline_of(request, fields, UNSAID_S)
        making = server.answered(lambda: answer(request, fields, deadline))
        return await unless_gone(making, deadline)

    def limit() -> int:
        return max(server.largest_body(shown=True), server.largest_upload)

    return posted(server, limit, answered, _refusal, LineStream)


def _fields(request: Request, body: bytes, wanted: str) -> Fields:
    kind = request.headers.get("content-type", "")
    if is_upload(kind):
        return Fields(fields_of(body, kind, request.url.query, wanted=wanted))
    return Fields(bodies.parse(body))


async def _written(one: Asked, page: Page, scan: Scan, form: str) -> Response:
    """The page in its format; HTML holds its picture."""
    source, task = one.file.name, one.ask.task
    if form == "json":
        value = document_to_json(Document(source=source, task=task, pages=(page,)))
        content = json.dumps(value, allow_nan=False, separators=(",", ":"))
    else:
        kind = TEXT_FORMATS[form]
        picture = await one.writer.aside(lambda: to_jpeg(scan.pixels)) if kind.pictures else None
        content = kind.head(source, task) + kind.page(page, task, picture, True) + kind.tail
    return Response(content.encode("utf-8", "backslashreplace"), media_type=KINDS[form])


def _refusal(error: Exception) -> Response:
    failure = failure_of(error)
    return reply(failure.body(openai=False), failure.status, failure.headers)
