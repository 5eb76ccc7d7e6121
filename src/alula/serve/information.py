"""What a server says of itself."""

from __future__ import annotations

from typing import Any

from alula import __version__
from alula.serve.opening import PART
from alula.serve.server import Server
from alula.serve.service import Service


def models(server: Server) -> dict[str, Any]:
    """`GET /v1/models`, as OpenAI has it."""
    return {"object": "list", "data": [_model(service) for service in server.catalogue.services]}


def model(server: Server, name: str) -> dict[str, Any]:
    """`GET /v1/models/NAME`, as OpenAI has it."""
    return _model(server.catalogue.named(name))


def _model(service: Service) -> dict[str, Any]:
    return {"id": service.name, "object": "model", "created": 0, "owned_by": "alula"}


def info(server: Server) -> dict[str, Any]:
    """`GET /info`: the first model as text-embeddings-inference describes one, and all of them in full."""
    if not server.catalogue.services:
        return {"version": __version__, "models": []}
    described = [_described(service) for service in server.catalogue.services]
    first = described[0]
    options = server.options
    return {
        "model_id": first["id"],
        "model_sha": first["revision"],
        "model_dtype": first["precision"],
        "model_type": first["task"],
        "max_input_length": first["max_input_length"],
        "max_client_batch_size": options.max_client_batch,
        "max_batch_tokens": options.max_batch_tokens,
        "max_body_bytes": options.max_body_bytes,
        "version": __version__,
        "models": described,
    }


def _described(service: Service) -> dict[str, Any]:
    engine = service.bundle.engine(PART)
    return {
        "id": service.name,
        "revision": service.spec.revision,
        "task": service.spec.task,
        "architecture": service.spec.architecture,
        "engine": engine.backend,
        "precision": engine.graph.precision,
        "built_for": engine.target,
        "verified": service.bundle.verified,
        "max_input_length": service.spec.max_length,
        "max_batch_rows": service.policy.max_rows,
        "labels": list(service.spec.labels),
    }
