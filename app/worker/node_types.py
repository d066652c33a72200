"""Node types of extensions as data: the worker loads the code, the server only learns what it takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.graph.node import InputPort, NodeType, OutputPort, Ports
from app.graph.registry import schema
from app.graph.socket import SocketType


def node_type_json(node_type: NodeType) -> dict[str, Any]:
    """Return all that the server needs to know of a node type."""
    return schema(node_type)


def node_type_of(data: Mapping[str, Any], ports_of: Callable[[Mapping[str, Any]], Ports] | None) -> NodeType:
    """Return a node type that can be validated and planned, not run. ports_of: asks for ports that depend on values."""
    return NodeType(
        name=data["name"],
        display_name=data["display_name"],
        category=data["category"],
        help=data["help"],
        version=data["version"],
        ports=ports_of_json(data),
        prepare=_not_here,
        output_node=data["output_node"],
        is_loop=data["is_loop"],
        ports_of=ports_of if data["has_dynamic_ports"] else None,
        source=data["source"],
        search_aliases=tuple(data["search_aliases"]),
    )


def ports_of_json(data: Mapping[str, Any]) -> Ports:
    """Return the ports that `ports_schema` described."""
    return Ports(tuple(map(_input, data["inputs"])), tuple(map(_output, data["outputs"])))


def _input(data: Mapping[str, Any]) -> InputPort:
    return InputPort(
        data["name"],
        _socket(data),
        help=data["help"],
        required=data["required"],
        default=data.get("default"),
        minimum=data.get("minimum"),
        maximum=data.get("maximum"),
        step=data.get("step"),
        choices=tuple(data.get("choices", ())),
        role=data["role"],
        pair=data["pair"],
        cfg=data.get("cfg", ""),
        literal_only=data.get("literal_only", False),
        widget=data.get("widget", ""),
        group=data.get("group", ""),
    )


def _output(data: Mapping[str, Any]) -> OutputPort:
    return OutputPort(data["name"], _socket(data), data["help"], data["per_step"], data.get("group", ""))


def _socket(data: Mapping[str, Any]) -> SocketType:
    shape = data.get("shape")
    return SocketType(data["type"], frozenset(data.get("dtypes", ())), None if shape is None else tuple(shape))


def _not_here(context: Any, literals: Mapping[str, Any]) -> Any:
    raise RuntimeError("nodes of extensions run in the worker only")
