"""By what runs are found: the words and node types of their workflows, and the words of their results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from app.server.storage.schema import State, clean

_SEARCHED_CHARACTERS = 20_000  # of a workflow, and again of its results: enough to find it by
_SEARCHED_WORDS = 50  # SQLite refuses conditions of more than 1,000


def search_text_of(document: Mapping[str, Any]) -> str:
    """Return the words to find a workflow by: titles and literal texts of its nodes."""
    parts: list[str] = []
    for node in _nodes(document):
        meta = node.get("_meta")
        if isinstance(meta, dict):
            parts.extend(_texts(meta.get("title")))
        inputs = node.get("inputs")
        if isinstance(inputs, dict):
            for value in inputs.values():
                if not isinstance(value, list):  # a list is a link; a literal one is wrapped in {"__value__": ...}
                    parts.extend(_texts(value))
    return "\n".join(parts)


def node_types_of(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the types of a workflow's nodes, each once, in alphabetical order."""
    types = {node["class_type"] for node in _nodes(document) if isinstance(node.get("class_type"), str)}
    return tuple(sorted(name for name in types if name))


def _nodes(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    nodes = document.get("nodes")
    return [node for node in nodes.values() if isinstance(node, dict)] if isinstance(nodes, dict) else []


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a literal; documents are never nested more than 100 deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def searchable(*parts: str) -> str:
    """Return texts as the column `search_text` holds them: lower case, cut, ending in a line."""
    return clean("\n".join(part for part in parts if part)[:_SEARCHED_CHARACTERS]).casefold() + "\n"


def typed(name: str) -> str:
    """Return a node type as one line of the column `node_types`."""
    return clean(name).replace("\n", " ") + "\n"


def conditions(
    text: str, node_type: str | None, state: State | Iterable[State] | None, workflow_id: str | None
) -> tuple[str, tuple[Any, ...]]:
    """Return an SQL condition and its values. instr takes % and _ for what they are, which LIKE would not."""
    words = clean(text[:_SEARCHED_CHARACTERS]).casefold().split()[:_SEARCHED_WORDS]
    wanted = ["instr(search_text, ?) > 0"] * len(words)
    values: list[Any] = list(words)
    if node_type is not None:
        wanted.append("instr(node_types, ?) > 0")
        values.append("\n" + typed(node_type))
    if state is not None:
        states = [state] if isinstance(state, str) else list(state)
        wanted.append(f"state in ({', '.join('?' * len(states))})")
        values.extend(states)
    if workflow_id is not None:
        wanted.append("workflow_id = ?")
        values.append(clean(workflow_id))
    return " and ".join(wanted) or "true", tuple(values)
