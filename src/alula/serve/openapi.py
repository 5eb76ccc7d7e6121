"""The description of the endpoints, and a page that shows it without anything from elsewhere."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from alula import __version__

TEXT = {"type": "string"}
FLAG = {"type": "boolean"}
COUNT = {"type": "integer", "minimum": 1}
TEXTS = {"oneOf": [TEXT, {"type": "array", "items": TEXT}]}
MODEL = {"type": "string", "description": "which of the served models; by default the first that fits"}
TRUNCATE = {"type": "boolean", "default": True, "description": "cut texts that are too long, or refuse them"}
OBJECT = {"type": "object"}


def document() -> dict[str, Any]:
    """`GET /openapi.json`."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "alula", "version": __version__},
        "paths": {
            "/v1/embeddings": _post(
                "Embeddings, as OpenAI has them",
                {
                    "input": {"description": "a text, texts, token ids, or lists of token ids"},
                    "model": MODEL,
                    "encoding_format": {"enum": ["float", "base64"], "default": "float"},
                    "dimensions": COUNT,
                    "user": TEXT,
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
                    "dimensions": COUNT,
                    "model": MODEL,
                },
                ["inputs"],
                {"inputs": "A parrot sat on the fence."},
            ),
            "/predict": _post(
                "Classes of texts, entities in texts, or answers to a question, by the model's task",
                {
                    "inputs": {
                        "description": "classes: a text, a pair, or [[text], [text, text], ...]; "
                        "entities: a text or texts; answers: {question, context}"
                    },
                    "raw_scores": {**FLAG, "default": False},
                    "question": TEXT,
                    "context": TEXT,
                    "parameters": {
                        "type": "object",
                        "description": "aggregation_strategy (simple, none); top_k, max_answer_len",
                    },
                    "truncate": TRUNCATE,
                    "model": MODEL,
                },
                [],
                {"inputs": "A parrot sat on the fence."},
            ),
            "/rerank": _post(
                "How well each text answers the query, the best first",
                {
                    "query": TEXT,
                    "texts": {"type": "array", "items": TEXT},
                    "raw_scores": {**FLAG, "default": False},
                    "return_text": {**FLAG, "default": False},
                    "truncate": TRUNCATE,
                    "model": MODEL,
                },
                ["query", "texts"],
                {"query": "Which bird talks?", "texts": ["Parrots can talk.", "Fences cannot."]},
            ),
            "/v1/models": _get("The served models"),
            "/info": _get("What is served, from what, and within which limits"),
            "/health/live": _get("200 unless only a new start would help"),
            "/health/ready": _get("200 while requests are answered; a full queue is no reason against it"),
            "/metrics": _get("Figures for Prometheus", "text/plain"),
        },
    }


def _post(
    summary: str, properties: dict[str, Any], required: list[str], example: dict[str, Any]
) -> dict[str, Any]:
    schema = {**OBJECT, "properties": properties, "required": required, "additionalProperties": False}
    answers = {
        "200": _answer("the answer"),
        "400": _answer("the request cannot be used as it is"),
        "404": _answer("no such model, or none with this task"),
        "413": _answer("body or batch too large"),
        "429": _answer("the queue is full; try again after Retry-After"),
        "500": _answer("the engine failed"),
        "503": _answer("loading, stopping, or the engine is being started again"),
    }
    body = {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}
    return {"post": {"summary": summary, "requestBody": body, "responses": answers}}


def _get(summary: str, kind: str = "application/json") -> dict[str, Any]:
    return {"get": {"summary": summary, "responses": {"200": _answer(summary, kind)}}}


def _answer(description: str, kind: str = "application/json") -> dict[str, Any]:
    return {"description": description, "content": {kind: {}}}


@cache
def page() -> str:
    """`GET /docs`: lists what the document describes, with a form to try it."""
    return resources.files("alula.serve").joinpath("docs.html").read_text(encoding="utf-8")
