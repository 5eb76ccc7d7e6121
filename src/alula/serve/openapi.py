"""The description of the endpoints."""

from __future__ import annotations

from typing import Any

from alula import __version__
from alula.serve import deadlines, openapi_pages, openapi_tensors, openapi_writing, terms
from alula.serve.bodies import LARGEST

TEXT = {"type": "string"}
FLAG = {"type": "boolean"}
COUNT = {"type": "integer", "minimum": 1, "maximum": LARGEST - 1}
TEXTS = {"oneOf": [TEXT, {"type": "array", "items": TEXT, "minItems": 1}]}
MODEL = {"type": "string", "description": "which of the served models; by default the first that fits"}
TRUNCATE = {"type": "boolean", "default": True, "description": "cut texts that are too long, or refuse them"}
OBJECT = {"type": "object"}
TIMEOUT = {
    "type": "number",
    "minimum": deadlines.SHORTEST_S,
    "maximum": deadlines.LONGEST_S,
    "description": "seconds until 504; X-Request-Timeout-Ms says the same in milliseconds",
}
PRIORITY = {
    "enum": list(terms.PRIORITIES),
    "default": "normal",
    "description": "how urgent it is; X-Priority says the same",
}
SOON = {"timeout": TIMEOUT, "priority": PRIORITY}
DIRECTION = {"enum": ["right"], "default": "right", "description": "which end of a text is cut off"}
OPTIONS = {
    "aggregation_strategy": {
        "enum": ["simple", "none"],
        "default": "simple",
        "description": "entities: whole ones, or the label of every token",
    },
    "top_k": {**COUNT, "default": 1, "description": "answers, or classes of an image (there 5): how many"},
    "max_answer_len": {**COUNT, "default": 15, "description": "answers: of how many tokens at most"},
}

PREDICT: dict[str, Any] = {
    "inputs": {
        "description": "classes: a text, a pair, or [[text], [text, text], ...]; "
        "entities: a text or texts; answers: {question, context}; images: base64 or data URLs, "
        "one or a list, or the files of a form, or the body itself"
    },
    "raw_scores": {**FLAG, "default": False},
    "question": TEXT,
    "context": TEXT,
    **OPTIONS,
    "parameters": {
        **OBJECT,
        "description": "holds the options of entities and answers, as the HuggingFace API has it; "
        "then they must not stand outside",
        "properties": OPTIONS,
        "additionalProperties": False,
    },
    "truncate": TRUNCATE,
    "truncation_direction": DIRECTION,
    "model": MODEL,
    **SOON,
}
"""What `/predict` takes for one task or another."""


def document() -> dict[str, Any]:
    """What endpoints take whatever is served; `openapi_served` says what the served models take."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "alula", "version": __version__},
        "paths": {
            "/v1/chat/completions": _streaming(
                _post(
                    "The next message of a conversation, as OpenAI has it",
                    {**openapi_writing.CHAT, "priority": PRIORITY},
                    ["messages"],
                    openapi_writing.CHAT_EXAMPLE,
                )
            ),
            "/v1/completions": _streaming(
                _post(
                    "How texts go on, as OpenAI has it; or what an encoder-decoder makes of them",
                    {**openapi_writing.COMPLETION, "priority": PRIORITY},
                    ["prompt"],
                    openapi_writing.COMPLETION_EXAMPLE,
                )
            ),
            "/v1/embeddings": _post(
                "Embeddings, as OpenAI has them",
                {
                    "input": openapi_writing.TEXTS_OR_IDS,
                    "model": MODEL,
                    "encoding_format": {"enum": ["float", "base64"], "default": "float"},
                    "dimensions": COUNT,
                    "user": TEXT,
                    **SOON,
                },
                ["input"],
                {"input": ["A parrot sat on the fence.", "There is a bird outside."]},
            ),
            "/embed": _post(
                "Embeddings, as text-embeddings-inference has them",
                {
                    "inputs": TEXTS,
                    "normalize": {**FLAG, "default": True},
                    "truncate": TRUNCATE,
                    "truncation_direction": DIRECTION,
                    "dimensions": COUNT,
                    "model": MODEL,
                    **SOON,
                },
                ["inputs"],
                {"inputs": "A parrot sat on the fence."},
            ),
            "/embed_all": _post(
                "A vector for each token, as text-embeddings-inference has them; of models built for it",
                {
                    "inputs": TEXTS,
                    "truncate": TRUNCATE,
                    "truncation_direction": DIRECTION,
                    "model": MODEL,
                    **SOON,
                },
                ["inputs"],
                {"inputs": "A parrot sat on the fence."},
            ),
            "/tokenize": _post(
                "The tokens of texts, none cut off, as text-embeddings-inference has them",
                {
                    "inputs": TEXTS,
                    "add_special_tokens": {**FLAG, "default": True},
                    "model": MODEL,
                    **SOON,
                },
                ["inputs"],
                {"inputs": "A parrot sat on the fence."},
            ),
            "/predict": _with_images(
                _post(
                    "Classes of texts or images, entities, answers to questions, boxes and lines of text in images, "
                    "by the model's task",
                    PREDICT,
                    [],
                    {"inputs": "A parrot sat on the fence."},
                )
            ),
            "/ocr": _of_pages(
                _post(
                    "What stands on a page, by the published schema or as text",
                    {**openapi_pages.PAGE, **SOON},
                    ["inputs"],
                    openapi_pages.EXAMPLE,
                ),
                "text/plain",
                "text/markdown",
                "text/html",
            ),
            "/ocr/pdf": _of_pages(
                _post(
                    "The pages of a PDF, a TIFF or an image, each as a line as soon as it is read; the last line is a "
                    "summary, or an error",
                    {**openapi_pages.DOCUMENT, **SOON},
                    ["inputs"],
                    openapi_pages.EXAMPLE,
                ),
                "application/x-ndjson",
                takes=("application/pdf",),
            ),
            "/rerank": _post(
                "How well each text answers the query, the best first",
                {
                    "query": TEXT,
                    "texts": {"type": "array", "items": TEXT, "minItems": 1},
                    "raw_scores": {**FLAG, "default": False},
                    "return_text": {**FLAG, "default": False},
                    "truncate": TRUNCATE,
                    "truncation_direction": DIRECTION,
                    "model": MODEL,
                    **SOON,
                },
                ["query", "texts"],
                {"query": "Which bird talks?", "texts": ["Parrots can talk.", "Fences cannot."]},
            ),
            "/v1/models": _get("The served models"),
            "/v1/models/{model}": _get("One served model", missing="no such model"),
            openapi_tensors.PATH: _of_model(
                _post(
                    "Tensors to tensors, as the Open Inference Protocol has it; also under /versions/1",
                    openapi_tensors.INFER,
                    ["inputs"],
                    openapi_tensors.INFER_EXAMPLE,
                )
            ),
            "/v2": _get("What the server is, as the Open Inference Protocol has it"),
            "/v2/models/{model}": _get(
                "Which tensors a model takes and gives; also under /versions/1", missing="no such model"
            ),
            "/v2/models/{model}/ready": _get(
                "Whether a model answers; also under /versions/1",
                missing="no such model",
                away="it does not answer now",
            ),
            "/v2/health/live": _get("As /health/live", away="a new start would help"),
            "/v2/health/ready": _get("As /health/ready", away="loading, stopping, or without an engine"),
            "/info": _get("What is served, from what, and within which limits"),
            "/health/live": _get("200 unless only a new start would help", away="a new start would help"),
            "/health/ready": _get(
                "200 while requests are answered; a full queue is no reason against it",
                away="loading, stopping, or without an engine",
            ),
            "/metrics": _get("Figures for Prometheus", kind="text/plain"),
        },
    }


def _post(
    summary: str,
    properties: dict[str, Any],
    required: list[str],
    example: dict[str, Any],
) -> dict[str, Any]:
    schema = {**OBJECT, "properties": properties, "required": required, "additionalProperties": False}
    answers = {
        "200": _answer("the answer"),
        "400": _answer("the request cannot be used as it is"),
        "401": _answer("a key is needed, or is not known"),
        "403": _answer("the key may not ask for this priority"),
        "404": _answer("no such model, or none with this task"),
        "405": METHOD,
        "408": _answer("the body did not arrive in time"),
        "413": _answer("body or batch too large"),
        "429": _answer("the queue is full; try again after Retry-After"),
        "500": _answer("the engine failed"),
        "504": _answer("an answer was not finished in time"),
        "503": _answer("loading, stopping, or the engine is being started again; or too many connections"),
    }
    body = {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}
    return {"post": {"summary": summary, "requestBody": body, "responses": answers}}


def _streaming(described: dict[str, Any]) -> dict[str, Any]:
    """The same, whose answer may also come as events."""
    described["post"]["responses"]["200"]["content"]["text/event-stream"] = {}
    return described


def _with_images(described: dict[str, Any]) -> dict[str, Any]:
    """The same, whose body may also be images as they are."""
    kinds = ("multipart/form-data", "image/*", "application/octet-stream")
    described["post"]["requestBody"]["content"] |= {kind: {} for kind in kinds}
    return described


def _of_pages(described: dict[str, Any], *kinds: str, takes: tuple[str, ...] = ()) -> dict[str, Any]:
    """The same, whose body may also be a file as it is, and whose answer is of these kinds."""
    _with_images(described)["post"]["requestBody"]["content"] |= {kind: {} for kind in takes}
    described["post"]["responses"]["200"]["content"] |= {kind: {} for kind in kinds}
    return described


def _of_model(described: dict[str, Any]) -> dict[str, Any]:
    """The same, whose path names the model, and whose body may hold the bytes of tensors behind its JSON."""
    described["post"]["parameters"] = [dict(NAMED)]
    described["post"]["requestBody"]["content"]["application/octet-stream"] = {}
    described["post"]["responses"]["415"] = _answer("a content-encoding other than gzip and deflate")
    described["post"]["responses"]["200"]["content"]["application/octet-stream"] = {}
    return described


def _get(
    summary: str, *, kind: str = "application/json", missing: str = "", away: str = ""
) -> dict[str, Any]:
    responses = {"200": _answer(summary, kind), "405": METHOD}
    operation: dict[str, Any] = {"summary": summary, "responses": responses}
    if missing:
        responses["404"] = _answer(missing)
        operation["parameters"] = [dict(NAMED)]
    if away:
        responses["503"] = _answer(away)
    return {"get": operation}


def _answer(description: str, kind: str = "application/json") -> dict[str, Any]:
    return {"description": description, "content": {kind: {}}}


NAMED = {"name": "model", "in": "path", "required": True, "schema": TEXT}

METHOD = _answer("the path takes another method, which Allow names")
