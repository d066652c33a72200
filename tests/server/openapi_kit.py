"""An OpenAPI document put to work: requests made of it, answers judged by it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from tests.server.kit import Answer

BASE = "urn:openapi"


@dataclass(slots=True)
class Api:
    """A document, and which (operation, status) its answers have shown so far."""

    document: dict[str, Any]
    seen: set[tuple[str, int]] = field(default_factory=set)

    def operations(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield method, path and operation of each."""
        for path, methods in self.document["paths"].items():
            for method, operation in methods.items():
                yield method.upper(), path, operation

    def find(self, name: str) -> tuple[str, str, dict[str, Any]]:
        """Return method, path and operation of an operationId."""
        return next(found for found in self.operations() if found[2]["operationId"] == name)

    def declared(self, operation: Mapping[str, Any]) -> set[int]:
        """Return the statuses that an operation declares by number."""
        return {int(status) for status in operation["responses"] if status != "default"}

    def target(self, name: str, values: Mapping[str, Any]) -> tuple[str, str]:
        """Return method and path with query; parameters that `values` lacks are as in their examples."""
        method, path, operation = self.find(name)
        query = {}
        for parameter in operation.get("parameters", ()):
            key = parameter["name"]
            value = values.get(key, parameter.get("example"))
            if parameter["in"] == "path":
                assert value is not None, f"{name}: nothing for {key}"
                path = path.replace(f"{{{key}}}", quote(str(value)))
            elif parameter["in"] == "query" and value is not None:
                query[key] = ",".join(value) if isinstance(value, list) else value
        return method, f"{path}?{urlencode(query)}" if query else path

    def bodies(self, name: str) -> list[Any]:
        """Return the examples of an operation's JSON body; one None when it takes none."""
        body = self.find(name)[2].get("requestBody")
        if body is None:
            return [None]
        media = body["content"]["application/json"]
        examples = [self.resolved(example)["value"] for example in media["examples"].values()]
        assert examples, name
        for example in examples:
            self.check(media["schema"], example)
        return examples

    def resolved(self, part: dict[str, Any]) -> dict[str, Any]:
        """Return what a reference stands for; anything else as it is."""
        if "$ref" not in part:
            return part
        found: Any = self.document
        for key in part["$ref"].removeprefix("#/").split("/"):
            found = found[key]
        return dict(found)

    def judge(self, name: str, answer: Answer) -> Any:
        """Check an answer against what the operation declares for its status; return its JSON, if it has one."""
        operation = self.find(name)[2]
        assert answer.status in self.declared(operation), (name, answer.status, answer.body[:500])
        self.seen.add((name, answer.status))
        content = operation["responses"][str(answer.status)].get("content")
        if content is None:
            assert answer.body == b"", name
            return None
        kind = answer.headers["Content-Type"].partition(";")[0]
        assert kind in content, (name, kind)
        data = answer.json if kind == "application/json" else answer.body.decode()
        self.check(content[kind]["schema"], data)
        return data

    def check(self, schema: dict[str, Any], data: Any) -> None:
        """Raise AssertionError with the place when data is not as a schema says."""
        resource = DRAFT202012.create_resource(self.document)
        registry: Registry[Any] = Registry().with_resource(BASE, resource)
        errors = list(Draft202012Validator(_absolute(schema), registry=registry).iter_errors(data))
        assert not errors, [(list(error.absolute_path), error.message[:300]) for error in errors[:3]]


def _absolute(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with references into the document, out of which it was taken."""
    absolute: dict[str, Any] = json.loads(json.dumps(schema).replace('"$ref": "#/', f'"$ref": "{BASE}#/'))
    return absolute
