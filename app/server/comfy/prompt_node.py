"""Nodes of a ComfyUI prompt, their values cast as ComfyUI casts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.graph.document import Node, link_of, literal_of, written
from app.graph.errors import InputError
from app.graph.node import InputPort, NodeType, Ports
from app.graph.registry import Registry
from app.server.comfy.node_faults import Fault, bad_link, exception, not_converted

_CASTS: dict[str, Callable[[Any], Any]] = {"INT": int, "FLOAT": float, "STRING": str, "BOOLEAN": bool}
_TAKES_LISTS = ("LIST", "TENSOR", "*")


@dataclass(slots=True)
class PromptNode:
    """One node of a prompt.

    inputs: all of the client's inputs, those that are known cast; None when the prompt has no object there.
    node: the node as it is run: known inputs only, wires by node id.
    ports: None when they cannot be told. sources: (input, node id) of every wire to a node of the prompt.
    is_unread: nothing of it could be read, so that nothing else needs to be said about it.
    """

    node: Node
    type: NodeType
    inputs: dict[str, Any] | None = None
    ports: Ports | None = None
    faults: list[Fault] = field(default_factory=list)
    sources: list[tuple[str, str]] = field(default_factory=list)

    @property
    def is_unread(self) -> bool:
        """Whether it has no inputs to speak of."""
        return self.inputs is None

    def port(self, name: str) -> InputPort | None:
        """Return the input port of that name, or None."""
        return (self.ports or self.type.ports).input(name)


class PromptReader:
    """Reads the nodes of a prompt whose node types are all known."""

    def __init__(self, prompt: Mapping[str, Any], registry: Registry) -> None:
        self._prompt = prompt
        self._registry = registry
        self._ids_by_title: dict[str, list[str]] | None = None

    def read(self, node_id: str) -> PromptNode:
        """Return one node, cast, with what is wrong with its values as far as casting them tells."""
        data = self._prompt[node_id]
        node_type = self._registry.get(data["class_type"])
        assert node_type is not None
        extra = {key: value for key, value in data.items() if key not in ("class_type", "inputs")}
        read = PromptNode(Node(node_id, node_type.name, {}, extra), node_type)
        if "inputs" not in data:
            read.faults.append(exception("", "KeyError", "'inputs'"))
        elif not isinstance(data["inputs"], dict):
            found = type(data["inputs"]).__name__
            message = f"found inputs that are a {found}, accepted an object by input name; write them as one"
            read.faults.append(exception("", "TypeError", message))
        else:
            self._read_inputs(read, data["inputs"])
        return read

    def _read_inputs(self, read: PromptNode, given: Mapping[str, Any]) -> None:
        inputs = dict(given)
        for port in read.type.ports.inputs:
            self._cast(read, port, inputs)
        read.inputs = inputs
        read.ports = _ports(read.type, inputs)
        settings = {port.name for port in read.type.ports.inputs}
        for port in read.ports.inputs if read.ports else ():
            if port.name not in settings:
                self._cast(read, port, inputs)
        known = {port.name for port in read.ports.inputs} if read.ports else inputs.keys()
        run = {name: self._wire(read, name, value) for name, value in inputs.items() if name in known}
        read.node = Node(read.node.id, read.node.class_type, run, read.node.extra)

    def _cast(self, read: PromptNode, port: InputPort, inputs: dict[str, Any]) -> None:
        """Cast one input in place, or report why it cannot be."""
        value = inputs.get(port.name)
        if isinstance(value, list) and link_of(value) is None and port.type.kind not in _TAKES_LISTS:
            read.faults.append(_no_link(port, value))
            return
        cast = None if port.choices else _CASTS.get(port.type.kind)
        literal = literal_of(value)
        if cast is None or literal is None or link_of(value) is not None:
            return
        try:
            inputs[port.name] = written(cast(literal))
        except (TypeError, ValueError, OverflowError) as error:
            read.faults.append(not_converted(port, literal, str(error)))

    def _wire(self, read: PromptNode, name: str, value: Any) -> Any:
        """Return an input's value as it is run: a wire from a title becomes one from that node's id."""
        link = link_of(value)
        if link is None:
            return value
        source = link.node if link.node in self._prompt else self._titled(link.node)
        if source is None:
            return value
        read.sources.append((name, source))
        return [source, link.output]

    def _titled(self, title: str) -> str | None:
        """Return the id of the only node of that title, or None."""
        if self._ids_by_title is None:
            self._ids_by_title = {}
            for node_id, data in self._prompt.items():
                meta = data.get("_meta")
                name = meta.get("title") if isinstance(meta, dict) else None
                if isinstance(name, str):
                    self._ids_by_title.setdefault(name, []).append(node_id)
        ids = self._ids_by_title.get(title, [])
        return ids[0] if len(ids) == 1 else None


def _ports(node_type: NodeType, inputs: Mapping[str, Any]) -> Ports | None:
    """Return the ports of a node, or None when they cannot be told; validation tells why."""
    if node_type.ports_of is None:
        return node_type.ports
    literals = {port.name: port.default for port in node_type.ports.inputs if port.default is not None}
    for name, value in inputs.items():
        if link_of(value) is None and (literal := literal_of(value)) is not None:
            literals[name] = literal
    try:
        return node_type.ports_for(literals)
    except InputError:
        return None


def _no_link(port: InputPort, value: list[Any]) -> Fault:
    if len(value) != 2:
        return bad_link(port, value)
    if not isinstance(value[0], str):
        return exception(port.name, "KeyError", repr(value[0]))
    message = f"found slot {value[1]!r}, accepted the number or the name of an output; wire it again"
    return exception(port.name, "TypeError", message)
