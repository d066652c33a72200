"""Short ways to write JSON Schema (2020-12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]


def text(meaning: str = "", **more: Any) -> Schema:
    """Return the schema of a text."""
    return _described({"type": "string", **more}, meaning)


def one_of(*values: str, meaning: str = "") -> Schema:
    """Return the schema of a text that is one of these."""
    return text(meaning, enum=list(values))


def whole(meaning: str = "", low: int | None = 0, high: int | None = None, **more: Any) -> Schema:
    """Return the schema of a whole number, both ends included."""
    limits = {key: value for key, value in (("minimum", low), ("maximum", high)) if value is not None}
    return _described({"type": "integer", **limits, **more}, meaning)


def number(meaning: str = "", **more: Any) -> Schema:
    """Return the schema of a number."""
    return _described({"type": "number", **more}, meaning)


def flag(meaning: str = "", **more: Any) -> Schema:
    """Return the schema of true or false."""
    return _described({"type": "boolean", **more}, meaning)


def listed(items: Schema, meaning: str = "") -> Schema:
    """Return the schema of a list."""
    return _described({"type": "array", "items": items}, meaning)


def by_name(values: Schema, meaning: str = "") -> Schema:
    """Return the schema of an object with keys of any name."""
    return _described({"type": "object", "additionalProperties": values}, meaning)


def anything(meaning: str) -> Schema:
    """Return the schema of any JSON."""
    return {"description": meaning}


def ref(name: str) -> Schema:
    """Return the schema that stands for a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def or_null(schema: Schema) -> Schema:
    """Return the schema of the same or null."""
    if "type" in schema and "enum" not in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def record(properties: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None, meaning: str = "") -> Schema:
    """Return the schema of an object with these keys and no others."""
    known = {**properties, **(optional or {})}
    schema: Schema = {"type": "object", "properties": known, "additionalProperties": False}
    if properties:
        schema["required"] = list(properties)
    return _described(schema, meaning)


def body(properties: Mapping[str, Schema], required: tuple[str, ...] = (), meaning: str = "") -> Schema:
    """Return the schema of an object that a client sends; keys that are not known are left alone."""
    schema: Schema = {"type": "object", "properties": dict(properties)}
    if required:
        schema["required"] = list(required)
    return _described(schema, meaning)


def _described(schema: Schema, meaning: str) -> Schema:
    return {**schema, "description": meaning} if meaning else schema
