"""The registry: every node type by name, its schema as JSON, and what a misspelt name may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

from app.graph.node import InputPort, NodeType, OutputPort, Ports
from app.graph.socket import SocketType


class Registry:
    """Node types by name."""

    def __init__(self, node_types: Iterable[NodeType] = ()) -> None:
        self._by_name: dict[str, NodeType] = {}
        for node_type in node_types:
            self.add(node_type)

    def add(self, node_type: NodeType) -> None:
        """Register a node type. Raises ValueError when its name is taken by another one."""
        known = self._by_name.get(node_type.name)
        if known is not None and known.source != node_type.source:
            raise ValueError(f"node type {node_type.name} of {node_type.source} already comes from {known.source}")
        self._by_name[node_type.name] = node_type

    def get(self, name: str) -> NodeType | None:
        """Return the node type of that name, or None."""
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[NodeType]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def unknown(self, name: str) -> str:
        """Return the sentence for an unknown node type, naming its nearest neighbours."""
        return unknown_name("node type", name, self._by_name)


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """Return `<what> 'x' is not registered; did you mean A or B?`, or the list of known names if none is near."""
    names = sorted(known)
    near = nearest(name, names)
    if near:
        return f"{what} {name!r} is not registered; did you mean {' or '.join(near)}?"
    hint = "see `ortloom nodes` for all" if len(names) > 12 else f"registered are {', '.join(names) or 'none'}"
    return f"{what} {name!r} is not registered and no name is near; {hint}, or install the extension it comes from"


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three known names that look like `name`, best first; case does not count."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    return [by_lower[key] for key in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)]


def schema(node_type: NodeType) -> dict[str, Any]:
    """Return the full schema of a node type as JSON-ready data."""
    return {
        "name": node_type.name,
        "display_name": node_type.display_name,
        "category": node_type.category,
        "help": node_type.help,
        "version": node_type.version,
        "source": node_type.source,
        "output_node": node_type.output_node,
        "is_loop": node_type.is_loop,
        "has_dynamic_ports": node_type.ports_of is not None,
        "search_aliases": list(node_type.search_aliases),
        **ports_schema(node_type.ports),
    }


def ports_schema(ports: Ports) -> dict[str, Any]:
    """Return ports as JSON-ready data: {"inputs": [...], "outputs": [...]}."""
    return {
        "inputs": [_input_schema(port) for port in ports.inputs],
        "outputs": [_output_schema(port) for port in ports.outputs],
    }


def _input_schema(port: InputPort) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": port.name,
        **_type_schema(port.type),
        "help": port.help,
        "required": port.required,
        "role": port.role,
        "pair": port.pair,
    }
    optional = {
        "default": port.default,
        "minimum": port.minimum,
        "maximum": port.maximum,
        "step": port.step,
        "choices": list(port.choices) or None,
        "cfg": port.cfg or None,
        "widget": port.widget or None,
        "group": port.group or None,
        "literal_only": port.literal_only or None,
    }
    return entry | {key: value for key, value in optional.items() if value is not None}


def _output_schema(port: OutputPort) -> dict[str, Any]:
    entry = {"name": port.name, **_type_schema(port.type), "help": port.help, "per_step": port.per_step}
    return entry | ({"group": port.group} if port.group else {})


def _type_schema(socket_type: SocketType) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": socket_type.kind}
    if socket_type.dtypes:
        entry["dtypes"] = sorted(socket_type.dtypes)
    if socket_type.shape is not None:
        entry["shape"] = list(socket_type.shape)
    return entry
