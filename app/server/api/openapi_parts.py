"""The pieces that the operations of the OpenAPI document are put together from."""

from __future__ import annotations

from typing import Any

from app.server.api.json_schema import Schema, ref, text

Operation = dict[str, Any]
Answers = dict[int, dict[str, Any]]

JSON = "application/json"
REASONS = {
    400: "The request is malformed: no JSON object, a name that is no good, or a parameter out of its range",
    401: "No valid token",
    403: "Asked under a foreign name, by another site's page, or for a name that leads out of its folder",
    404: "There is none of that name or id",
    409: "It is not as the client believes",
    413: "The body is too large",
    422: "It cannot be done with these values; every problem is told",
    428: "No version given",
    429: "Too many are open",
    507: "It cannot be written; what was there is unchanged",
}


def operation(
    tag: str,
    name: str,
    answers: Answers,
    errors: tuple[int, ...] = (),
    parameters: tuple[dict[str, Any], ...] = (),
    body: dict[str, Any] | None = None,
    **more: Any,
) -> Operation:
    """Return an operation without its summary. errors: statuses besides those that all operations have."""
    told = {403, *errors, *((400, 413) if body else ()), *(() if more.get("security") == [] else (401,))}
    responses: dict[str, Any] = {str(status): answer for status, answer in answers.items()}
    responses |= {str(status): error(status) for status in sorted(told)}
    responses = dict(sorted(responses.items()))
    responses["default"] = {"$ref": "#/components/responses/Failure"}
    found: Operation = {"tags": [tag], "operationId": name, "responses": responses, **more}
    if parameters:
        found["parameters"] = list(parameters)
    if body:
        found["requestBody"] = body
    return found


def error(status: int, schema: str = "Errors") -> dict[str, Any]:
    """Return an answer with problems."""
    return {"description": REASONS[status], "content": {JSON: {"schema": ref(schema)}}}


def answer(meaning: str, schema: Schema | None = None, **more: Any) -> dict[str, Any]:
    """Return an answer with JSON, or without a body."""
    content = {"content": {JSON: {"schema": schema}}} if schema else {}
    return {"description": meaning, **content, **more}


def sent(schema: str, *, required: bool = True, **examples: Any) -> dict[str, Any]:
    """Return a request's body. examples: by name, or where one is."""
    told = {name: value if "$ref" in value else {"value": value} for name, value in examples.items()}
    return {"required": required, "content": {JSON: {"schema": ref(schema), "examples": told}}}


def query(name: str, schema: Schema, meaning: str, *, required: bool = False, **more: Any) -> dict[str, Any]:
    """Return a query parameter."""
    return {"name": name, "in": "query", "required": required, "description": meaning, "schema": schema, **more}


def in_path(name: str, meaning: str, **more: Any) -> dict[str, Any]:
    """Return a part of the path."""
    schema = text(minLength=1)
    return {"name": name, "in": "path", "required": True, "description": meaning, "schema": schema, **more}
