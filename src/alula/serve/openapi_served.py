"""The description of the endpoints, made true of what is served: the models a path takes, and what each of them does.

What JSON Schema can say is said, so that a client that fills in the description is not refused: names of models, sizes,
fields of one task that another one does not take. What it cannot say is in the words beside it: that a file can be
decoded, that a tensor has as many elements as its shape, that a prompt fits the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from alula.core.words import TEXT_TASKS, WRITING_TASKS
from alula.serve import ocr_routes, openapi, openapi_repository, openapi_tensors, openapi_writing
from alula.serve.answering import EMBEDDINGS, PREDICTIONS, RERANKING
from alula.serve.bodies import LARGEST
from alula.serve.catalogue import Served
from alula.serve.line_reading import TASKS as TASKS_BY_LINES
from alula.serve.line_reading import trio_of
from alula.serve.options import ServeOptions
from alula.serve.pictures import READING
from alula.serve.service import gives_tokens
from alula.serve.writer import CHATS

Schema = dict[str, Any]
Variants = Callable[[Served, ServeOptions], Sequence[Schema]]

NOTHING: Schema = {"type": "null"}
EMPTY: Schema = {"type": ["object", "null"], "maxProperties": 0}
ALWAYS = ("model", "timeout", "priority")
CUT = ("truncate", "truncation_direction")


def document(services: Sequence[Served], options: ServeOptions) -> Schema:
    """`GET /openapi.json`; before the models are loaded, of models in general."""
    described = deepcopy(
        openapi.document()
    )  # of which many a part stands in several places, and in constants
    if options.repository:
        described["paths"] |= openapi_repository.paths()
    if services:
        _only(described, services)
    for path, (_, variants) in PATHS.items():
        fitting = _fitting(path, services)
        if not fitting:
            continue
        schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        schema["anyOf"] = [
            _named(variant, service, first=at == 0)
            for at, service in enumerate(fitting)
            for variant in variants(service, options)
        ]
    described = deepcopy(described)  # likewise what was added
    _names(described, services)
    for methods in described["paths"].values():
        for body in _bodies(methods):
            _optional(body["schema"])
    return described


def _named(variant: Schema, service: Served, *, first: bool) -> Schema:
    """What a model takes, where `model` names it; the first one need not be named."""
    names: list[str | None] = list(dict.fromkeys((service.name, service.bundle.root.name)))
    model = {"enum": [*names, None] if first else names}
    required = [*variant.get("required", ()), *(() if first else ("model",))]
    return {**variant, "properties": {**variant["properties"], "model": model}, "required": required}


def _texts(most: int, item: Schema = openapi.TEXT) -> Schema:
    return {"oneOf": [item, {"type": "array", "items": item, "minItems": 1, "maxItems": most}]}


def _embed(service: Served, options: ServeOptions) -> Sequence[Schema]:
    properties: Schema = {"inputs": _texts(options.max_client_batch), "dimensions": _dimensions(service)}
    if service.spec.normalize:
        properties["normalize"] = {"enum": [True, None]}
    return [{"properties": properties}]


def _embeddings(service: Served, options: ServeOptions) -> Sequence[Schema]:
    given = _texts_or_ids(service, options.max_client_batch, openapi.TEXT)
    return [{"properties": {"input": given, "dimensions": _dimensions(service)}}]


def _texts_or_ids(service: Served, most: int, text: Schema) -> Schema:
    ids = {"type": "array", "items": _token(service), "minItems": 1}
    many = {"type": "array", "minItems": 1, "maxItems": most}
    return {"anyOf": [text, {**many, "items": text}, ids, {**many, "items": ids}]}


def _token(service: Served) -> Schema:
    return {"type": "integer", "minimum": 0, "maximum": service.spec.vocab_size - 1}


def _dimensions(service: Served) -> Schema:
    size = service.spec.part("encoder").outputs[0].shape[-1]
    most = size if isinstance(size, int) else LARGEST - 1
    return {"type": ["integer", "null"], "minimum": 1, "maximum": most}


def _tokenize(service: Served, options: ServeOptions) -> Sequence[Schema]:
    return [{"properties": {"inputs": _texts(options.max_client_batch)}}]


def _rerank(service: Served, options: ServeOptions) -> Sequence[Schema]:
    return [{"properties": {"texts": {"type": "array", "maxItems": options.max_client_batch}}}]


def _predict(service: Served, options: ServeOptions) -> Sequence[Schema]:
    most = options.max_client_batch
    task = service.spec.task
    if task == "sequence-classification":
        one = {"type": "array", "items": openapi.TEXT, "minItems": 1, "maxItems": 2}
        batch = {"type": "array", "items": one, "minItems": 1, "maxItems": most}
        return [_closed({"inputs": {"anyOf": [openapi.TEXT, one, batch]}}, ("raw_scores", *CUT), ("inputs",))]
    if task == "token-classification":
        inputs = {"inputs": _texts(most)}
        return [
            _closed({**inputs, **way}, CUT, ("inputs", *needs))
            for way, needs in _ways("aggregation_strategy")
        ]
    if task == "question-answering":
        asked = {"question": openapi.TEXT, "context": openapi.TEXT}
        within = {**openapi.OBJECT, "properties": asked, "required": [*asked], "additionalProperties": False}
        found = []
        for way, needs in _ways("top_k", "max_answer_len"):
            found.append(_closed({**asked, "inputs": EMPTY, **way}, CUT, (*asked, *needs)))
            found.append(_closed({"inputs": within, **way}, CUT, ("inputs", *needs)))
        return found
    best = ("top_k",) if task == "image-classification" else ()
    image = {"type": "string", "contentEncoding": "base64", "minLength": 1}
    return [_closed({"inputs": _texts(most, image)}, best, ("inputs",))]


def _ways(*names: str) -> Iterator[tuple[Schema, tuple[str, ...]]]:
    """Options of a task, outside or inside `parameters`, and what then has to be there."""
    given = {name: openapi.OPTIONS[name] for name in names}
    yield {**given, "parameters": EMPTY}, ()
    within = {**openapi.OBJECT, "properties": given, "minProperties": 1, "additionalProperties": False}
    yield {"parameters": within}, ("parameters",)


def _closed(properties: Schema, more: Sequence[str], required: Sequence[str]) -> Schema:
    """These fields of `/predict`, those that always may be there, and no others, but for null, which is none."""
    free = {*more, *ALWAYS, *properties}
    others = {name: NOTHING for name in openapi.PREDICT if name not in free}
    return {"properties": {**others, **properties}, "required": [*required]}


def _completed(service: Served, options: ServeOptions) -> Sequence[Schema]:
    (variant,) = _written(service, options)
    prompt = _texts_or_ids(service, options.max_client_batch, {**openapi.TEXT, "minLength": 1})
    return [{"properties": {**variant["properties"], "prompt": prompt}}]


def _written(service: Served, options: ServeOptions) -> Sequence[Schema]:
    bias = {
        "type": ["object", "null"],
        "patternProperties": {up_to(service.spec.vocab_size - 1): openapi_writing.BIAS},
        "additionalProperties": False,
    }
    ends = {"type": ["array", "null"], "items": _token(service)}
    return [{"properties": {"logit_bias": bias, "stop_token_ids": ends}}]


EMBED_ALL = "/embed_all"

PATHS: Mapping[str, tuple[tuple[str, ...], Variants]] = {
    "/v1/chat/completions": (CHATS, _written),
    "/v1/completions": (WRITING_TASKS, _completed),
    "/v1/embeddings": (EMBEDDINGS, _embeddings),
    "/embed": (EMBEDDINGS, _embed),
    EMBED_ALL: (EMBEDDINGS, _tokenize),
    "/tokenize": (TEXT_TASKS, _tokenize),
    "/predict": ((*PREDICTIONS, *READING), _predict),
    "/rerank": (RERANKING, _rerank),
}
"""Which tasks a path is for, and what a model of them takes there beside what all do."""


def up_to(most: int) -> str:
    """A pattern for the whole numbers from 0 to `most`, written without needless noughts."""
    digits = str(most)
    size = len(digits)
    ways = [f"[1-9][0-9]{{{count}}}" for count in range(1, size - 1)]
    if size > 1:
        ways.append("[0-9]")
    for at, digit in enumerate(digits):
        low = 1 if at == 0 and size > 1 else 0
        high = int(digit) - (at < size - 1)
        if high >= low:
            rest = size - at - 1
            ways.append(f"{digits[:at]}[{low}-{high}]" + (f"[0-9]{{{rest}}}" if rest else ""))
    return f"^({'|'.join(ways)})$"


def _fitting(path: str, services: Sequence[Served]) -> list[Served]:
    """The models that a path is for."""
    tasks, _ = PATHS[path]
    fitting = [service for service in services if service.spec.task in tasks]
    return [each for each in fitting if gives_tokens(each.spec)] if path == EMBED_ALL else fitting


def _only(described: Schema, services: Sequence[Served]) -> None:
    """No path and no kind of body that no model here is for."""
    idle = [path for path in PATHS if not _fitting(path, services)]
    if not any(service.spec.sees for service in services):
        if trio_of(services) is None:
            idle += ocr_routes.PATHS
        else:
            _lines_alone(described)
    if all(service.spec.writes for service in services):
        idle.append(openapi_tensors.PATH)
    for path in idle:
        del described["paths"][path]
    if "/predict" not in idle and not any(service.spec.task in READING for service in services):
        content = described["paths"]["/predict"]["post"]["requestBody"]["content"]
        for kind in [kind for kind in content if kind != "application/json"]:
            del content[kind]


def _lines_alone(described: Schema) -> None:
    """Pages are read line by line: fewer tasks."""
    for path in ocr_routes.PATHS:
        content = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        properties = content["schema"]["properties"]
        properties["task"] = {**properties["task"], "enum": list(TASKS_BY_LINES)}


def _names(described: Schema, services: Sequence[Served]) -> None:
    """Paths that name a model name one that is served."""
    for path, methods in described["paths"].items():
        tensors = path == openapi_tensors.PATH
        names = [service.name for service in services if not (tensors and service.spec.writes)]
        for operation in methods.values():
            for parameter in operation.get("parameters", ()) if names else ():
                parameter["schema"] = {"enum": names}


def _bodies(methods: Schema) -> Iterator[Schema]:
    for operation in methods.values():
        for body in operation.get("requestBody", {}).get("content", {}).values():
            if "schema" in body:
                yield body


def _optional(schema: Any) -> None:
    """Null counts as left out, in every object that is described."""
    if isinstance(schema, list):
        for one in schema:
            _optional(one)
        return
    if not isinstance(schema, dict):
        return
    for key in ("items", "anyOf", "oneOf"):
        _optional(schema.get(key))
    required = schema.get("required", ())
    for name, one in schema.get("properties", {}).items():
        _optional(one)
        if name not in required:
            schema["properties"][name] = or_null(one)


def or_null(schema: Schema) -> Schema:
    """The same or null."""
    if "enum" in schema:
        return schema if None in schema["enum"] else {**schema, "enum": [*schema["enum"], None]}
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return schema if NOTHING in schema[key] else {**schema, key: [*schema[key], NOTHING]}
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return schema if not kinds or "null" in kinds else {**schema, "type": [*kinds, "null"]}
