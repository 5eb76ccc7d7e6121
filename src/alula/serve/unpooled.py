"""`POST /embed_all`: a vector for each token of a text, before they are pooled, as text-embeddings-inference has it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from starlette.responses import Response

from alula.codecs import Row
from alula.core.errors import EngineError
from alula.core.tensor import Array
from alula.core.words import TOKENS
from alula.serve import bodies
from alula.serve.answering import EMBEDDINGS, cut
from alula.serve.bodies import Fields
from alula.serve.catalogue import Catalogue
from alula.serve.errors import Refused
from alula.serve.service import Service, gives_tokens

MOST_NUMBERS = 4_000_000
"""In one answer: as JSON they are some 80 MB, and half a minute of a slow line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrices:
    """One matrix for each text, [tokens, numbers]."""

    arrays: tuple[Array, ...]

    async def response(self) -> Response:
        """All of them as JSON, written in a thread and text by text: others are answered in between."""
        loop = asyncio.get_running_loop()
        written = [await loop.run_in_executor(None, _json, array) for array in self.arrays]
        return Response(b"[" + b",".join(written) + b"]", media_type="application/json")


async def embed_all(catalogue: Catalogue, fields: Fields) -> Matrices:
    """The states of all tokens of each text, special ones included; neither pooled nor normalised."""
    service = _service(catalogue, fields.maybe("model", str))
    given = bodies.texts(fields.any("inputs"), "inputs")
    truncate = cut(fields)
    fields.done()
    hidden = next(spec.shape[-1] for spec in service.spec.parts[0].outputs if spec.name == TOKENS)
    assert isinstance(hidden, int)

    def encode() -> Sequence[Row]:
        rows = [service.codec.encode(text, truncate=truncate) for text in given]
        tokens = sum(len(row.ids) for row in rows)
        if tokens * hidden > MOST_NUMBERS:
            raise Refused(
                f"{tokens} tokens of {hidden} numbers each in one request; the limit is {MOST_NUMBERS} numbers: send "
                "fewer texts at a time",
                status=413,
            )
        return [replace(row, unpooled=True) for row in rows]

    _, outputs = await service.answer(len(given), sum(map(len, given)), encode)
    return Matrices(arrays=tuple(output[TOKENS] for output in outputs))


def _service(catalogue: Catalogue, model: str | None) -> Service:
    """The named model, or the first one that gives its tokens."""
    embedding = [each for each in catalogue.services if each.spec.task in EMBEDDINGS]
    if model is None and (able := [each for each in embedding if gives_tokens(each.spec)]):
        model = able[0].name
    service = catalogue.pick(Service, EMBEDDINGS, model)
    if not gives_tokens(service.spec):
        raise Refused(
            f"{service.name} gives one vector for each text, and none for tokens; build it with --token-embeddings",
            status=400,
        )
    return service


def _json(array: Array) -> bytes:
    try:
        return json.dumps(array.tolist(), allow_nan=False, separators=(",", ":")).encode("ascii")
    except ValueError as error:
        raise EngineError(f"the model gave NaN or infinity for {TOKENS!r}") from error
