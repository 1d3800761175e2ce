"""The OpenAPI 3.1 document, made from the table of routes and the types that decode requests."""

from __future__ import annotations

import functools
import re
from typing import Any

import msgspec

from holdfast.core.access import ROLES
from holdfast.server.problems import CODES, PROBLEM_JSON
from holdfast.server.routes import OPEN, Route
from holdfast.version import __version__

_REF = "#/components/schemas/{name}"
_SCOPES = {
    "filter": "A token with queues sees only rows of these.",
    "refuse": "For a token with queues, what belongs to another queue is not found.",
    "whole": "A token with queues does not find it.",
    "none": "It tells nothing about queues.",
}


@functools.cache
def document(routes: tuple[Route, ...]) -> dict[str, Any]:
    """Return the document."""
    kinds = list(dict.fromkeys(kind for route in routes for kind in (route.body, route.reply) if kind is not None))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    by_kind = dict(zip(map(id, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_kind)
    made = {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": __version__,
            "description": "Background jobs and workflows that survive kill -9.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "."}],
        "security": [{"bearer": []}, {"cookie": []}, {}],
        "paths": paths,
        "components": {
            "schemas": {**components, "Problem": _problem()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "holdfast_session"},
            },
        },
    }
    found: dict[str, Any] = _for_generators(made)
    return found


def _for_generators(part: Any) -> Any:
    """Say what generators of types take literally: an object with any members, and a member that may be left out."""
    if isinstance(part, list):
        return [_for_generators(each) for each in part]
    if not isinstance(part, dict):
        return part
    changed = {name: _for_generators(each) for name, each in part.items()}
    if changed.get("type") == "object" and not {"properties", "additionalProperties"} & changed.keys():
        changed["additionalProperties"] = {}
    if "default" in changed and changed["default"] is None:
        del changed["default"]
    return changed


def _operation(route: Route, by_kind: dict[int, Any]) -> dict[str, Any]:
    said = [f"{route.summary}."]
    if route.roles is not OPEN:
        said.append(f"Roles: {', '.join(role for role in ROLES if role in route.roles)}.")
        said.append(_SCOPES[route.scope])
    if route.repeat:
        said.append(f"Repeated: {route.repeat}.")
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "description": " ".join(said),
        "responses": _responses(route, by_kind),
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", route.path)
    ]
    if route.query is not None:
        parameters += _query(route.query)
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {"application/json": {"schema": by_kind[id(route.body)]}}
        operation["requestBody"] = {"required": not route.optional_body, "content": content}
    return operation


def _query(kind: Any) -> list[dict[str, Any]]:
    (_,), components = msgspec.json.schema_components([kind], ref_template=_REF)
    found = components[kind.__name__]
    return [
        {"name": name, "in": "query", "required": False, "schema": schema, "style": "form", "explode": False}
        for name, schema in found["properties"].items()
    ]


def _responses(route: Route, by_kind: dict[int, Any]) -> dict[str, Any]:
    schema = by_kind[id(route.reply)] if route.reply is not None else {"type": "object"}
    if route.media_type != "application/json":
        schema = {"type": "string"}
    content = {route.media_type: {"schema": schema}}
    responses: dict[str, Any] = {
        str(status): {"description": "created" if status == 201 else "done", "content": content}
        for status in route.statuses
    }
    responses["default"] = {
        "description": "a problem; its code says which",
        "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    return responses


def _problem() -> dict[str, Any]:
    text = {"type": "string"}
    return {
        "type": "object",
        "description": "An error (RFC 9457).",
        "required": ["type", "title", "status", "detail", "code", "request_id"],
        "properties": {
            "type": text,
            "title": text,
            "status": {"type": "integer"},
            "detail": text,
            "code": {"enum": list(CODES)},
            "request_id": text,
            "errors": {
                "type": "array",
                "items": {"type": "object", "properties": {"pointer": text, "detail": text}},
            },
            "job": {"type": "object"},
        },
    }
