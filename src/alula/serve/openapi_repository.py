"""The model repository, for the description of the endpoints; where models may be loaded at all."""

from __future__ import annotations

from typing import Any

from alula.serve.repository_routes import INDEX, LOAD, UNLOAD

_STATUSES = {
    "200": "done",
    "400": "the bundle, or the request, cannot be used",
    "401": "a key is needed, or is not known",
    "403": "the key is no administrator's",
    "404": "no bundle of this name",
    "405": "the path takes another method, which Allow names",
    "408": "the body did not arrive in time",
    "409": "there is no memory for it",
    "413": "body too large",
    "429": "too many bodies; try again after Retry-After",
    "500": "the engine could not be opened, or answers otherwise than its reference",
    "503": "loading, stopping, or the engine is being started again",
}


def paths() -> dict[str, Any]:
    """Three of them."""
    parameters = {"type": "object", "properties": {"unload_dependents": {"type": "boolean"}}}
    closed = {"additionalProperties": False}
    change = {"parameters": {**parameters, **closed}}
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        INDEX: _post("Every bundle that may be served", {"ready": {"type": "boolean"}}),
        _plain(LOAD): _post("Serve a bundle as it lies in its folder now", change, model),
        _plain(UNLOAD): _post("Serve a model no longer", change, model),
    }


def _plain(path: str) -> str:
    return path.replace(":path", "")


def _post(summary: str, properties: dict[str, Any], *parameters: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    responses = {
        status: {"description": told, "content": {"application/json": {}}}
        for status, told in _STATUSES.items()
    }
    body = {"required": False, "content": {"application/json": {"schema": schema}}}
    asked = {"parameters": [*parameters]} if parameters else {}
    return {"post": {"summary": summary, **asked, "requestBody": body, "responses": responses}}
