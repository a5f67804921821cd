"""The reference of the JSON API at /api/docs, made from its OpenAPI description.

Swagger UI would be 1.7 MB of scripts for a list of paths, parameters and schemas.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from crawler.web.pages import page, path_to

REFERENCE = "#/components/schemas/"


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path.

    parameters: name, place, type and description of each
    responses:  status, description and JSON schema of each
    """

    method: str
    path: str
    summary: str
    parameters: list[tuple[str, str, str, str]]
    body: str
    responses: list[tuple[str, str, str]]


async def docs_page(request: Request) -> Response:
    """Show all operations of the API with their parameters and schemas."""
    description = request.app.openapi()
    schemas = description.get("components", {}).get("schemas", {})
    operations = []
    for path, methods in sorted(description["paths"].items()):
        for method, operation in methods.items():
            parameters = [
                (
                    each["name"],
                    each["in"],
                    " or ".join(
                        str(kind.get("type", "any"))
                        for kind in each["schema"].get("anyOf", [each["schema"]])
                    ),
                    each.get("description", ""),
                )
                for each in operation.get("parameters", ())
            ]
            responses = [
                (status, response["description"], _schema(response.get("content", {}), schemas))
                for status, response in operation["responses"].items()
                if status < "4"
            ]
            text = operation.get("description") or operation.get("summary", "")
            body = _schema(operation.get("requestBody", {}).get("content", {}), schemas)
            operations.append(Operation(method.upper(), path, text, parameters, body, responses))
    schema_path = path_to(request, "api.schema")
    return page(request, "api/docs.html", operations=operations, schema_path=schema_path)


def _schema(content: dict[str, Any], schemas: dict[str, Any]) -> str:
    """Return the first schema of a body as JSON, with references resolved; empty without one."""
    for media in content.values():
        return json.dumps(_resolved(media.get("schema", {}), schemas, ()), indent=2)
    return ""


def _resolved(value: Any, schemas: dict[str, Any], path: tuple[str, ...]) -> Any:
    """Replace references by the schemas; those that contain themselves keep their name."""
    if isinstance(value, list):
        return [_resolved(each, schemas, path) for each in value]
    if not isinstance(value, dict):
        return value
    name = str(value.get("$ref", "")).removeprefix(REFERENCE)
    if name in schemas and name not in path:
        return _resolved(schemas[name], schemas, (*path, name))
    return {key: _resolved(each, schemas, path) for key, each in value.items()}
