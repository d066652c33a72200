"""Validation: everything that is wrong with a workflow at once, each problem at its node and input."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from app.graph.document import Node, Workflow, link_of, literal_of
from app.graph.errors import InputError, Problem
from app.graph.graph import Graph, GraphNode, Source
from app.graph.guidance import scales_without_pair
from app.graph.modes import active
from app.graph.node import InputPort, NodeType, Ports
from app.graph.registry import Registry, nearest
from app.graph.socket import why_not


def validate(
    workflow: Workflow, registry: Registry, targets: Iterable[str] | None = None
) -> tuple[Graph, list[Problem]]:
    """Return the graph of all nodes that the targets need, and every problem that keeps it from running.

    targets: node ids; every output node when None. Nodes that no target needs, and muted ones, are left out and not
    judged.
    The graph is whole only when there are no problems.
    """
    problems: list[Problem] = []
    workflow = active(workflow, registry)
    wanted = _wanted(workflow, registry, targets, problems)
    nodes = {node_id: _resolve_type(workflow.nodes[node_id], registry, problems) for node_id in wanted}
    drafts = {node_id: draft for node_id, draft in nodes.items() if draft is not None}
    graph: Graph = {}
    for node_id, draft in drafts.items():
        graph[node_id] = _resolve_inputs(draft, drafts, workflow, problems)
    refused = {problem.node for problem in problems}
    problems += [problem for node in graph.values() if node.id not in refused for problem in _check(node)]
    problems += scales_without_pair(graph)
    return graph, problems


class _Draft:
    """A node whose type and ports are known, its inputs not yet. ports: None when they could not be told."""

    __slots__ = ("by_name", "node", "outputs", "ports", "type")

    def __init__(self, node: Node, node_type: NodeType, ports: Ports | None) -> None:
        self.node = node
        self.type = node_type
        self.ports = ports
        self.by_name = {port.name: port for port in ports.inputs} if ports else {}
        self.outputs = {port.name: index for index, port in enumerate(ports.outputs)} if ports else {}


def _wanted(
    workflow: Workflow, registry: Registry, targets: Iterable[str] | None, problems: list[Problem]
) -> list[str]:
    """Return the ids of the targets and of all that they depend on, in document order."""
    if targets is None:
        start = [node.id for node in workflow.nodes.values() if _is_output(node, registry)]
        if not start:
            unknown = [node for node in workflow.nodes.values() if registry.get(node.class_type) is None]
            for node in unknown:
                _resolve_type(node, registry, problems)
            if not unknown:
                message = (
                    "found no output node that runs, accepted at least one such as Save Image, Preview Image or Show "
                    "Value; add one and wire it to what you want to see, or unmute what it needs"
                )
                problems.append(Problem(message, "no_outputs"))
    else:
        start = list(targets)
        for target in start:
            if target not in workflow.nodes:
                accepted = "the id of a node of this workflow that runs"
                message = f"found target {target!r}, accepted {accepted}; choose one of these"
                problems.append(Problem(message, "unknown_node", target))
    seen = set(start) & set(workflow.nodes)
    work = list(seen)
    while work:
        for value in workflow.nodes[work.pop()].inputs.values():
            link = link_of(value)
            if link is not None and link.node in workflow.nodes and link.node not in seen:
                seen.add(link.node)
                work.append(link.node)
    return [node_id for node_id in workflow.nodes if node_id in seen]


def _is_output(node: Node, registry: Registry) -> bool:
    node_type = registry.get(node.class_type)
    return node_type is not None and node_type.output_node


def _resolve_type(node: Node, registry: Registry, problems: list[Problem]) -> _Draft | None:
    node_type = registry.get(node.class_type)
    if node_type is None:
        message = registry.unknown(node.class_type)
        problems.append(Problem(message, "unknown_node_type", node.id, node.title))
        return None
    try:
        written = {name: literal_of(value) for name, value in node.inputs.items() if link_of(value) is None}
        literals = {name: value for name, value in written.items() if value is not None}
        return _Draft(node, node_type, node_type.ports_for(_defaults(node_type.ports) | literals))
    except InputError as error:
        problems.append(error.at(node.id, _title(node, node_type)))
        return _Draft(node, node_type, None)


def _defaults(ports: Ports) -> dict[str, Any]:
    return {port.name: port.default for port in ports.inputs if port.default is not None}


def _title(node: Node, node_type: NodeType) -> str:
    return node.title or node_type.display_name


def _resolve_inputs(
    draft: _Draft, drafts: Mapping[str, _Draft], workflow: Workflow, problems: list[Problem]
) -> GraphNode:
    """Return the node with its literals and links, reporting what is wrong with each input."""
    node, title = draft.node, _title(draft.node, draft.type)
    literals: dict[str, Any] = {}
    links: dict[str, Source] = {}

    def report(name: str, message: str, code: str) -> None:
        problems.append(Problem(message, code, node.id, title, name))

    for name, value in node.inputs.items():
        port = draft.by_name.get(name)
        if port is None:
            if draft.ports is not None and not name.startswith("_"):
                report(name, _unknown_input(name, draft), "unknown_input")
            continue
        link = link_of(value)
        if link is None:
            literal = literal_of(value)
            if literal is None and not port.required:  # null means: not set
                continue
            wrong = why_not_literal(literal, port)
            if wrong is None:
                literals[name] = literal
            else:
                report(name, wrong[0], wrong[1])
        elif port.literal_only:
            report(name, "found a wire, accepted a value of its own; unwire it and set the value", "literal_only")
        elif link.node not in workflow.nodes:
            message = f"found a wire from node {link.node!r}, which is not in the workflow; wire it again"
            report(name, message, "link_to_missing_node")
        elif (source := drafts.get(link.node)) is not None and source.ports is not None:
            index = link.output if isinstance(link.output, int) else source.outputs.get(link.output, -1)
            if not 0 <= index < len(source.ports.outputs):
                report(name, _missing_output(link.output, source), "link_to_missing_output")
                continue
            reason = why_not(source.ports.outputs[index].type, port.type)
            if reason is not None:
                report(name, f"{reason} (wired from {_title(source.node, source.type)})", "type_mismatch")
            links[name] = Source(link.node, index)
    ports = draft.ports or Ports((), ())
    for port in ports.inputs:
        if port.name in literals or port.name in links:
            continue
        if port.default is not None:
            literals.setdefault(port.name, port.default)
        elif port.required and port.name not in node.inputs:
            report(port.name, f"found nothing, accepted {port.type}; wire it{_or_set(port)}", "required_input_missing")
    return GraphNode(node.id, title, draft.type, ports, literals, links)


def _or_set(port: InputPort) -> str:
    return "" if port.type.kind in ("TENSOR", "IMAGE", "MASK", "SAMPLER", "*") else " or set a value"


def _unknown_input(name: str, draft: _Draft) -> str:
    near = nearest(name, draft.by_name)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(draft.by_name) or 'no inputs'}"
    return f"found an input that {draft.type.display_name} does not have; {hint}"


def _missing_output(output: str | int, source: _Draft) -> str:
    names = ", ".join(source.outputs) or "no outputs"
    found = f"output {output!r} of {_title(source.node, source.type)}"
    return f"found a wire from {found}, accepted one of {names}; wire it again"


def _check(node: GraphNode) -> list[Problem]:
    """Return what the node type's own check of the literals finds."""
    try:
        if node.type.check is not None:
            node.type.check(node.literals)
    except InputError as error:
        return [error.at(node.id, node.title)]
    return []


def why_not_literal(value: Any, port: InputPort) -> tuple[str, str] | None:
    """Return None when a port can hold the literal, else a sentence and a code."""
    kind = port.type.kind
    if kind == "*":
        return None
    if kind in ("INT", "FLOAT"):
        return _why_not_number(value, port)
    fits = {
        "BOOLEAN": isinstance(value, bool),
        "STRING": isinstance(value, str),
        "LIST": isinstance(value, list),
        "TENSOR": _shape_of(value) is not None,
    }.get(kind, False)
    if not fits:
        accepted = (
            f"one of {', '.join(port.choices)}" if port.choices else _ACCEPTED.get(kind, f"a wire of type {kind}")
        )
        return f"found {_shown(value)}, accepted {accepted}; {_FIX.get(kind, 'wire it')}", "wrong_type"
    if port.choices and value not in port.choices:
        near = nearest(value, port.choices)
        hint = f"did you mean {' or '.join(near)}?" if near else "choose one of them"
        return f"found {value!r}, accepted one of {', '.join(port.choices)}; {hint}", "not_in_choices"
    return None


_ACCEPTED = {
    "BOOLEAN": "true or false",
    "STRING": "a text",
    "LIST": "a list",
    "TENSOR": "a wire, a number or evenly nested lists of numbers",
}
_FIX = {"BOOLEAN": "set true or false", "STRING": "write it in quotes", "LIST": "write it in brackets"}


def _why_not_number(value: Any, port: InputPort) -> tuple[str, str] | None:
    accepted = f"{'a whole number' if port.type.kind == 'INT' else 'a number'}{_range(port)}"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (port.type.kind == "INT" and not isinstance(value, int)):
        return f"found {_shown(value)}, accepted {accepted}; set a number", "wrong_type"
    if isinstance(value, float) and not math.isfinite(value):
        return f"found {value}, accepted {accepted}; set a finite number", "out_of_range"
    too_small = port.minimum is not None and value < port.minimum
    if too_small or (port.maximum is not None and value > port.maximum):
        return f"found {_shown(value)}, accepted {accepted}; {'raise' if too_small else 'lower'} it", "out_of_range"
    return None


def _range(port: InputPort) -> str:
    low, high = port.minimum, port.maximum
    if high is None:
        return "" if low is None else f" of at least {bound(low)}"
    return f" of at most {bound(high)}" if low is None else f" from {bound(low)} to {bound(high)}"


def bound(value: float) -> str:
    """Return a range's end as it is shown: whole numbers in full."""
    return str(int(value)) if value == int(value) else f"{value:g}"


def _shape_of(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a number or of evenly nested lists of numbers, or None for anything else."""
    if not isinstance(value, list):
        return () if isinstance(value, int | float | bool) else None
    shapes = {_shape_of(item) for item in value}
    if len(shapes) > 1 or None in shapes:
        return None
    return (len(value), *(shapes.pop() or () if shapes else ()))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
