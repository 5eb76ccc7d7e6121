"""What a server says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alula import __version__
from alula.core.model import ModelSpec
from alula.core.words import MANIFEST
from alula.documents import TASKS
from alula.serve.catalogue import Served
from alula.serve.line_reading import TASKS as TASKS_BY_LINES
from alula.serve.line_reading import trio_of
from alula.serve.server import Server

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""Precisions in the words of text-embeddings-inference; it has none for the others."""


def models(server: Server) -> dict[str, Any]:
    """`GET /v1/models`, as OpenAI has it."""
    return {"object": "list", "data": [_model(service) for service in server.catalogue.services]}


def model(server: Server, name: str) -> dict[str, Any]:
    """`GET /v1/models/NAME`, as OpenAI has it."""
    return _model(server.catalogue.named(name))


def _model(service: Served) -> dict[str, Any]:
    """One model; what it takes in tokens under the name that vLLM has for it."""
    longest = service.limits.get("max_total_tokens", service.spec.max_length)
    return {
        "id": service.name,
        "object": "model",
        "created": _made(service.bundle.root),
        "owned_by": "alula",
        **({"max_model_len": longest} if service.spec.vocab_size else {}),
    }


def _made(root: Path) -> int:
    """When a bundle was made or came here; 0 where it has been taken away since."""
    try:
        return int((root / MANIFEST).stat().st_mtime)
    except OSError:
        return 0


def info(server: Server) -> dict[str, Any]:
    """`GET /info`: the first model as text-embeddings-inference describes one, and all of them in full.

    Texts are tokenised in this process alone, which is one worker in its words; it is no container, and has no label.
    """
    if not server.catalogue.services:
        return {"version": __version__, "models": []}
    described = [_described(service) for service in server.catalogue.services]
    first = described[0]
    options = server.options
    return {
        "model_id": first["id"],
        "served_model_name": first["id"],
        "model_sha": first["revision"],
        "model_dtype": DTYPES.get(first["precision"], first["precision"]),
        "model_type": _type(server.catalogue.services[0].spec),
        "auto_truncate": True,
        "max_concurrent_requests": options.max_waiting_rows,
        "max_input_length": first["max_input_length"],
        "max_client_batch_size": options.max_client_batch,
        "max_batch_tokens": options.max_batch_tokens,
        "max_batch_requests": first.get("max_batch_rows"),
        "tokenization_workers": 1,
        "sha": None,
        "docker_label": None,
        "max_body_bytes": options.max_body_bytes,
        "pages": _pages(server.catalogue.services),
        "version": __version__,
        "models": described,
    }


def _pages(services: Sequence[Served]) -> dict[str, Any] | None:
    """Who reads pages where a request names nobody, and what may be asked; nothing where nobody does."""
    for service in services:
        if service.spec.sees:
            return {"model": service.name, "tasks": list(service.spec.taught or TASKS)}
    trio = trio_of(services)
    if trio is None:
        return None
    return {"model": trio.name, "tasks": list(TASKS_BY_LINES), "with": [trio.detect.name, trio.turn.name]}


def _type(spec: ModelSpec) -> Any:
    """The kind of a model in the words of text-embeddings-inference, or its task where that has no word."""
    if spec.task == "embeddings":
        return {"embedding": {"pooling": spec.pooling}}
    kind = {"sequence-classification": "classifier", "reranking": "reranker"}.get(spec.task)
    if kind is None:
        return spec.task
    numbered = {str(at): label for at, label in enumerate(spec.labels)}
    return {kind: {"id2label": numbered, "label2id": {label: int(at) for at, label in numbered.items()}}}


def _described(service: Served) -> dict[str, Any]:
    spec, bundle = service.spec, service.bundle
    engine = bundle.engine(spec.parts[-1].name)
    return {
        "id": service.name,
        "revision": spec.revision,
        "task": spec.task,
        "architecture": spec.architecture,
        "engine": engine.backend,
        "precision": engine.graph.precision,
        "built_for": engine.target,
        "verified": bundle.verified,
        "max_input_length": spec.max_length if spec.vocab_size else None,
        **service.limits,
        "labels": list(spec.labels),
    }
