"""The workflow document: one JSON file that is both edited and run. Whatever it holds survives load and save."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from app.graph.errors import Problem, WorkflowError
from app.graph.registry import nearest

VERSION = 1
MAX_BYTES = 64 << 20
MAX_DEPTH = 100


class Link(NamedTuple):
    """A wire's start as a document writes it: a node id and an output's name or slot number."""

    node: str
    output: str | int


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a document.

    inputs: as written: literals, links (two-item lists) and wrapped literals ({"__value__": ...}).
    extra: every other key, `_meta` with title and position and `mode` (modes.py) included.
    """

    id: str
    class_type: str
    inputs: Mapping[str, Any]
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Return the title in `_meta`, or an empty text."""
        meta = self.extra.get("_meta")
        title = meta.get("title") if isinstance(meta, dict) else None
        return title if isinstance(title, str) else ""


@dataclass(frozen=True, slots=True)
class Workflow:
    """A document. extra: every key besides `nodes`, untouched: groups, panel, requires and what else there is."""

    nodes: Mapping[str, Node]
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: Any) -> Workflow:
        """Return the workflow in decoded JSON of our own format. Raises WorkflowError with every problem found."""
        if not isinstance(data, dict) or not isinstance(data.get("nodes"), dict):
            accepted = 'an object with "version" and "nodes", or ComfyUI\'s API format'
            raise WorkflowError.of(
                f"found {_kind(data)}, accepted {accepted}; open a workflow saved by Ortloom", "shape"
            )
        version = data.get("version", VERSION)
        if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= VERSION:
            message = f"found document version {version!r}, accepted {VERSION}; update Ortloom to open it"
            raise WorkflowError.of(message, "version")
        problems: list[Problem] = []
        nodes = {str(key): _node(str(key), value, problems) for key, value in data["nodes"].items()}
        if problems:
            raise WorkflowError(problems)
        return cls(nodes, {key: value for key, value in data.items() if key != "nodes"})

    def to_json(self) -> dict[str, Any]:
        """Return the document as JSON-ready data, version first."""
        nodes = {
            node.id: {"class_type": node.class_type, "inputs": dict(node.inputs), **node.extra}
            for node in self.nodes.values()
        }
        return {"version": VERSION, **self.extra, "nodes": nodes}

    def with_inputs(self, changes: Mapping[tuple[str, str], Any]) -> Workflow:
        """Return a copy with literal inputs changed, (node id, input name) -> value. Raises WorkflowError."""
        nodes = dict(self.nodes)
        for (node_id, name), value in changes.items():
            if node_id not in nodes:
                raise WorkflowError.of(self._unknown_node(node_id), "unknown_node", node=node_id, input=name)
            node = nodes[node_id]
            if link_of(node.inputs.get(name)) is not None:
                message = "found a wired input, accepted one that holds a value; change the node that it is wired from"
                raise WorkflowError.of(message, "wired_input", node=node_id, title=node.title, input=name)
            nodes[node_id] = replace(node, inputs={**node.inputs, name: written(value)})
        return replace(self, nodes=nodes)

    def find_node(self, name: str) -> str:
        """Return the id of a node given by id or title. Raises WorkflowError when there is none, or several."""
        if name in self.nodes:
            return name
        found = [node.id for node in self.nodes.values() if node.title == name]
        if len(found) == 1:
            return found[0]
        if found:
            message = f"found {len(found)} nodes titled {name!r}, accepted one; use its id: {', '.join(found)}"
            raise WorkflowError.of(message, "ambiguous_node")
        raise WorkflowError.of(self._unknown_node(name), "unknown_node")

    def _unknown_node(self, name: str) -> str:
        names = [*self.nodes, *(node.title for node in self.nodes.values() if node.title)]
        near = nearest(name, names)
        hint = f"did you mean {' or '.join(near)}?" if near else "use the id or the title of one of its nodes"
        return f"found no node {name!r} in the workflow; {hint}"


def link_of(value: Any) -> Link | None:
    """Return the link that an input's value is, or None when it is a literal."""
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str):
        output = value[1]
        if isinstance(output, str) or (isinstance(output, int) and not isinstance(output, bool)):
            return Link(value[0], output)
    return None


def literal_of(value: Any) -> Any:
    """Return a literal input's value, unwrapped."""
    if isinstance(value, dict) and set(value) == {"__value__"}:
        return value["__value__"]
    return value


def written(value: Any) -> Any:
    """Return a literal as it is written: wrapped when it would read as a link or as a wrapped literal."""
    is_wrapped = isinstance(value, dict) and set(value) == {"__value__"}
    return {"__value__": value} if link_of(value) is not None or is_wrapped else value


def decode(text: str | bytes) -> Any:
    """Return the JSON in a text. Raises WorkflowError when it is too large, too deep or no JSON."""
    if len(text) > MAX_BYTES:
        message = f"found {len(text) >> 20} MiB, accepted at most {MAX_BYTES >> 20} MiB; this is no workflow"
        raise WorkflowError.of(message, "too_large")
    try:
        data = json.loads(text, parse_constant=_refuse_number, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise WorkflowError.of("found bytes that are no text, accepted JSON; check the file", "not_json") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise WorkflowError.of(
            f"found no JSON ({error.msg} at {where}), accepted JSON; mend it there", "not_json"
        ) from error
    except _NotFinite as error:
        message = f"found the number {str(error)[:40]}, accepted finite ones; JSON knows no other, mend it"
        raise WorkflowError.of(message, "not_json") from error
    except (RecursionError, ValueError) as error:
        raise WorkflowError.of("found JSON that is nested too deeply or holds too long a number", "not_json") from error
    if _is_deeper(data, MAX_DEPTH):
        message = f"found lists or objects nested over {MAX_DEPTH} deep, accepted less; this is no workflow"
        raise WorkflowError.of(message, "too_deep")
    return data


class _NotFinite(ValueError):
    """A number that JSON lacks or that no float holds."""


def _refuse_number(name: str) -> float:
    raise _NotFinite(name)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _NotFinite(text)
    return number


def _is_deeper(data: Any, limit: int) -> bool:
    level = [data]
    for _ in range(limit):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _node(key: str, value: Any, problems: list[Problem]) -> Node:
    if not isinstance(value, dict):
        problems.append(Problem(f"found {_kind(value)}, accepted an object with class_type and inputs", "shape", key))
        return Node(key, "", {})
    class_type, inputs = value.get("class_type"), value.get("inputs", {})
    if not isinstance(class_type, str) or not class_type:
        message = f"found class_type {class_type!r}, accepted the name of a node type; see `ortloom nodes`"
        problems.append(Problem(message, "missing_node_type", key))
    if not isinstance(inputs, dict):
        problems.append(
            Problem(f"found inputs that are {_kind(inputs)}, accepted an object by input name", "shape", key)
        )
        inputs = {}
    extra = {name: item for name, item in value.items() if name not in ("class_type", "inputs")}
    return Node(key, str(class_type), inputs, extra)


def _kind(value: Any) -> str:
    """Return what a piece of JSON is, for a sentence."""
    if isinstance(value, dict):
        keys = ", ".join(map(str, list(value)[:4]))
        return f"an object with {keys}" if keys else "an empty object"
    names = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "nothing" if value is None else type(value).__name__)
