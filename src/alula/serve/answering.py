"""What the endpoints say: a typed request in, plain JSON values out. Knows nothing of HTTP but the bodies."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alula.codecs import Row, answers, classes, entities, relevance, token_labels, vectors
from alula.core.errors import InputError
from alula.core.tensor import Feeds
from alula.core.words import TEXT_TASKS
from alula.serve import bodies, uploads
from alula.serve.bodies import Fields, Pair
from alula.serve.catalogue import Catalogue
from alula.serve.errors import Refused
from alula.serve.jsons import Numbers
from alula.serve.pictures import READING, Uploaded
from alula.serve.service import Service

EMBEDDINGS = ("embeddings",)
PREDICTIONS = ("sequence-classification", "token-classification", "question-answering")
RERANKING = ("reranking",)

MOST_CHARACTERS = 500_000
"""Of texts whose tokens are all told: an answer has some hundred bytes for each."""

BEST = 5
"""Classes of an image, where nobody says how many."""


async def embeddings(catalogue: Catalogue, fields: Fields) -> Numbers:
    """`POST /v1/embeddings`, as OpenAI has it."""
    service = catalogue.pick(Service, EMBEDDINGS, fields.maybe("model", str))
    given = bodies.inputs(fields.any("input"), "input")
    encoding = fields.word("encoding_format", ("float", "base64"))
    dimensions = fields.maybe("dimensions", int)
    fields.maybe("user", str)
    fields.done()
    refuse_dimensions(service, dimensions)
    rows, outputs = await service.answer(
        len(given), _characters(given), lambda: [_encoded(service, one) for one in given]
    )
    # Whether they are of length one is for the graph.
    found = _vectors(outputs, normalize=False, dimensions=dimensions)
    tokens = sum(len(row.ids) for row in rows)
    data = [
        {"object": "embedding", "index": at, "embedding": _written(vector, encoding)}
        for at, vector in enumerate(found)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return Numbers({"object": "list", "data": data, "model": service.name, "usage": usage})


async def embed(catalogue: Catalogue, fields: Fields) -> Numbers:
    """`POST /embed`, as text-embeddings-inference has it."""
    service = catalogue.pick(Service, EMBEDDINGS, fields.maybe("model", str))
    given = bodies.texts(fields.any("inputs"), "inputs")
    truncate = cut(fields)
    normalize = fields.get("normalize", bool, default=True)
    dimensions = fields.maybe("dimensions", int)
    fields.done()
    refuse_dimensions(service, dimensions)
    if service.spec.normalize and not normalize:
        raise InputError(f"normalize is false; {service.name} normalises inside its graph")
    _, outputs = await service.answer(
        len(given),
        _characters(given),
        lambda: [service.codec.encode(text, truncate=truncate, places=False) for text in given],
    )
    return Numbers(_vectors(outputs, normalize=normalize, dimensions=dimensions))


async def tokenize(catalogue: Catalogue, fields: Fields) -> list[list[dict[str, Any]]]:
    """`POST /tokenize`, as text-embeddings-inference has it: all tokens of each text, none cut off."""
    service = catalogue.pick(Service, TEXT_TASKS, fields.maybe("model", str))
    given = bodies.texts(fields.any("inputs"), "inputs")
    special = fields.get("add_special_tokens", bool, default=True)
    fields.done()
    if (characters := _characters(given)) > MOST_CHARACTERS:
        raise Refused(
            f"{characters} characters in one request; the limit is {MOST_CHARACTERS}, since all tokens are answered",
            status=413,
        )
    return await service.read(
        len(given),
        characters,
        lambda: [[asdict(token) for token in service.codec.tokens(text, special=special)] for text in given],
    )


async def predict(catalogue: Catalogue, fields: Fields) -> Any:
    """`POST /predict`: what the picked model's task makes of the inputs."""
    uploaded = uploads.are_in(fields.some(("inputs",)).get("inputs"))
    tasks = READING if uploaded else (*PREDICTIONS, *READING)
    service = catalogue.doing(tasks, fields.maybe("model", str))
    if isinstance(service, Uploaded):
        return await _predict_images(service, fields)
    assert isinstance(service, Service)
    return await PREDICT[service.spec.task](service, fields)


async def _predict_images(service: Uploaded[Any], fields: Fields) -> Any:
    given, batch = uploads.images(fields.any("inputs"))
    best = fields.get("top_k", int, BEST) if service.spec.task == "image-classification" else BEST
    fields.done()
    if best < 1:
        raise InputError(f"top_k is {best}; expected at least 1")
    found = await service.answer(given, best)
    return found if batch else found[0]


async def _predict_classes(service: Service, fields: Fields) -> Any:
    given, batch = bodies.pairs(fields.any("inputs"), "inputs")
    truncate = cut(fields)
    raw = fields.get("raw_scores", bool, default=False)
    fields.done()
    _, outputs = await service.answer(
        len(given), sum(pair.characters for pair in given), lambda: _encoded_pairs(service, given, truncate)
    )
    found = [[asdict(scored) for scored in classes(output, service.spec, raw=raw)] for output in outputs]
    return found if batch else found[0]


async def _predict_entities(service: Service, fields: Fields) -> Any:
    value = fields.any("inputs")
    given = bodies.texts(value, "inputs")
    truncate = cut(fields)
    options = fields.within("parameters")
    chosen = options if fields.maybe("parameters", dict) else fields
    aggregation = chosen.word("aggregation_strategy", ("simple", "none"))
    options.done()
    fields.done()
    rows, outputs = await service.answer(
        len(given),
        _characters(given),
        lambda: [service.codec.encode(text, truncate=truncate) for text in given],
    )
    read = entities if aggregation == "simple" else token_labels
    found = [
        [asdict(entity) for entity in read(output, row, text, service.spec)]
        for output, row, text in zip(outputs, rows, given, strict=True)
    ]
    return found[0] if isinstance(value, str) else found


async def _predict_answers(service: Service, fields: Fields) -> Any:
    """Takes question and context beside one another or, as the HuggingFace API has it, inside `inputs`."""
    asked = fields.within("inputs") if fields.maybe("inputs", dict) else fields
    question, context = asked.get("question", str), asked.get("context", str)
    if asked is not fields:
        asked.done()
    options = fields.within("parameters")
    chosen = options if fields.maybe("parameters", dict) else fields
    count = chosen.get("top_k", int, 1)
    longest = chosen.get("max_answer_len", int, 15)
    truncate = cut(fields)
    options.done()
    fields.done()
    if count < 1 or longest < 1:
        raise InputError(f"top_k is {count} and max_answer_len is {longest}; expected at least 1 of each")
    (row,), (output,) = await service.answer(
        1,
        len(question) + len(context),
        lambda: [service.codec.encode_pair(question, context, truncate=truncate, only_second=True)],
    )
    found = [asdict(one) for one in answers(output, row, context, count=count, max_tokens=longest)]
    if count > 1:
        return found
    return found[0] if found else {"answer": "", "start": 0, "end": 0, "score": 0.0}


PREDICT: dict[str, Callable[[Service, Fields], Any]] = {
    "sequence-classification": _predict_classes,
    "token-classification": _predict_entities,
    "question-answering": _predict_answers,
}


async def rerank(catalogue: Catalogue, fields: Fields) -> list[dict[str, Any]]:
    """`POST /rerank`, as text-embeddings-inference has it: the best text first."""
    service = catalogue.pick(Service, RERANKING, fields.maybe("model", str))
    query = fields.get("query", str)
    given = bodies.texts(fields.get("texts", list), "texts")
    raw = fields.get("raw_scores", bool, default=False)
    return_text = fields.get("return_text", bool, default=False)
    truncate = cut(fields)
    fields.done()
    both = [Pair(first=query, second=text) for text in given]
    _, outputs = await service.answer(
        len(both), sum(pair.characters for pair in both), lambda: _encoded_pairs(service, both, truncate)
    )
    scores = [relevance(output, service.spec, raw=raw) for output in outputs]
    order = sorted(range(len(scores)), key=lambda at: -scores[at])
    return [
        {"index": at, "score": scores[at], **({"text": given[at]} if return_text else {})} for at in order
    ]


def refuse_dimensions(service: Service, dimensions: int | None) -> None:
    """Refuse before running what would be refused after."""
    hidden = service.spec.part("encoder").outputs[0].shape[-1]
    if dimensions is not None and isinstance(hidden, int) and not 1 <= dimensions <= hidden:
        raise InputError(f"dimensions is {dimensions}; the model has 1..{hidden}")


def cut(fields: Fields) -> bool:
    """Whether a text that is too long is cut, rather than refused."""
    fields.word("truncation_direction", ("right",))
    return fields.get("truncate", bool, default=True)


def _characters(given: Sequence[str] | Sequence[list[int]]) -> int:
    return sum(len(one) for one in given)


def _encoded(service: Service, one: str | list[int]) -> Row:
    if isinstance(one, str):
        return service.codec.encode(one, places=False)
    return service.codec.encode_ids(one)


def _encoded_pairs(service: Service, given: Sequence[Pair], truncate: bool) -> list[Row]:
    return [
        service.codec.encode(pair.first, truncate=truncate)
        if pair.second is None
        else service.codec.encode_pair(pair.first, pair.second, truncate=truncate)
        for pair in given
    ]


def _vectors(
    outputs: Sequence[Feeds], *, normalize: bool, dimensions: int | None
) -> list[NDArray[np.float32]]:
    # A model that does not normalise keeps its lengths, unless a cut has made them meaningless.
    normalize = normalize or dimensions is not None
    return [vectors(output, normalize=normalize, dimensions=dimensions) for output in outputs]


def _written(vector: NDArray[np.float32], encoding: str) -> Any:
    if encoding == "float":
        return vector
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
