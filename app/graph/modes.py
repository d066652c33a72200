"""Muted and bypassed nodes: what is left of a workflow when they do not run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.graph.document import Link, Node, Workflow, link_of, literal_of
from app.graph.errors import InputError
from app.graph.node import Ports
from app.graph.registry import Registry

MUTE = "mute"
BYPASS = "bypass"


def active(workflow: Workflow, registry: Registry) -> Workflow:
    """Return the workflow without muted nodes, and with bypassed ones replaced by what is wired into them.

    A node's key `mode` says so. What needs a muted node does not run either; an input that can do without it is unset.
    A bypassed node's output gives what is wired into its first input of the same type, of two with one type the one
    at the output's own place; where there is none it counts as muted.
    """
    modes = {node.id: mode for node in workflow.nodes.values() if (mode := node.extra.get("mode")) in (MUTE, BYPASS)}
    if not modes:
        return workflow
    bypass = _Bypass(workflow, registry, modes)
    kept: dict[str, Node] = {}
    gone: list[str] = []
    for node in workflow.nodes.values():
        if node.id in modes:
            continue
        inputs = bypass.inputs(node)
        if inputs is None:
            gone.append(node.id)
        kept[node.id] = node if inputs is None else replace(node, inputs=inputs)
    return replace(workflow, nodes=_without(kept, gone, registry))


class _Bypass:
    """Follows wires through bypassed nodes."""

    def __init__(self, workflow: Workflow, registry: Registry, modes: Mapping[str, Any]) -> None:
        self._nodes = workflow.nodes
        self._registry = registry
        self._modes = modes
        self._known: dict[Link, Link | None] = {}

    def inputs(self, node: Node) -> dict[str, Any] | None:
        """Return a node's inputs, wires led to nodes that run; None when one that is needed leads nowhere."""
        inputs: dict[str, Any] = {}
        for name, value in node.inputs.items():
            link = link_of(value)
            if link is None or link.node not in self._modes:
                inputs[name] = value
            elif (led := self._led(link)) is not None:
                inputs[name] = list(led)
            elif is_required(node, name, self._registry):
                return None
        return inputs

    def _led(self, link: Link) -> Link | None:
        """Return the wire that a wire from a node that does not run stands for."""
        passed: list[Link] = []
        current: Link | None = link
        while current is not None and current.node in self._modes and current not in self._known:
            self._known[current] = None  # bypassed nodes in a circle lead nowhere
            passed.append(current)
            current = self._before(current)
        led = self._known[current] if current is not None and current.node in self._modes else current
        for each in passed:
            self._known[each] = led
        return led

    def _before(self, link: Link) -> Link | None:
        node = self._nodes[link.node]
        ports = ports_of(node, self._registry)
        if self._modes[link.node] == MUTE or ports is None:
            return None
        names = [port.name for port in ports.outputs]
        place = names.index(link.output) if link.output in names else link.output
        if not isinstance(place, int) or not 0 <= place < len(names):
            return None
        wanted = ports.outputs[place].type.kind
        fitting = [index for index, port in enumerate(ports.inputs) if port.type.kind == wanted]
        for index in sorted(fitting, key=lambda index: (index != place, index)):
            found = link_of(node.inputs.get(ports.inputs[index].name))
            if found is not None:
                return found
        return None


def ports_of(node: Node, registry: Registry) -> Ports | None:
    """Return a node's ports, or None when its type is unknown or they cannot be told."""
    node_type = registry.get(node.class_type)
    if node_type is None:
        return None
    written = {name: literal_of(value) for name, value in node.inputs.items() if link_of(value) is None}
    defaults = {port.name: port.default for port in node_type.ports.inputs if port.default is not None}
    try:
        return node_type.ports_for(defaults | {name: value for name, value in written.items() if value is not None})
    except (InputError, OSError):
        return None


def is_required(node: Node, name: str, registry: Registry) -> bool:
    """Return whether a node cannot do without an input; one that nobody knows counts as needed."""
    ports = ports_of(node, registry)
    port = None if ports is None else ports.input(name)
    return port is None or port.required


def _without(nodes: dict[str, Node], gone: list[str], registry: Registry) -> dict[str, Node]:
    """Return the nodes without those that are gone and all that need them."""
    followers: dict[str, list[tuple[str, str]]] = {}
    for node in nodes.values():
        for name, value in node.inputs.items():
            if (link := link_of(value)) is not None:
                followers.setdefault(link.node, []).append((node.id, name))
    left = dict(nodes)
    while gone:
        node_id = gone.pop()
        if left.pop(node_id, None) is None:
            continue
        for follower, name in followers.get(node_id, ()):
            if follower not in left:
                continue
            if is_required(left[follower], name, registry):
                gone.append(follower)
            else:
                inputs = {key: value for key, value in left[follower].inputs.items() if key != name}
                left[follower] = replace(left[follower], inputs=inputs)
    return left
