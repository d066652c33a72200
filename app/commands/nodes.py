"""`ortloom nodes`: list the node types, or show one."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict

from app.commands.setup import folders_of, print_problems, registry_of, start_log
from app.graph.errors import WorkflowError
from app.graph.node import InputPort, NodeType
from app.graph.registry import Registry, schema
from app.graph.validation import bound


def main(options: argparse.Namespace) -> int:
    """Print the node types; returns 1 for an unknown name."""
    start_log()
    try:
        registry = registry_of(options, folders_of(options))
        chosen = _chosen(registry, options.name)
    except WorkflowError as error:
        return print_problems(error.problems)
    if options.json:
        schemas = {node_type.name: schema(node_type) for node_type in chosen}
        print(json.dumps(schemas[options.name] if options.name else schemas, indent=2))
    elif options.name:
        print(_details(chosen[0]))
    else:
        print(_listing(chosen))
    return 0


def _chosen(registry: Registry, name: str | None) -> list[NodeType]:
    if name is None:
        return sorted(registry, key=lambda node_type: (node_type.category, node_type.name))
    found = registry.get(name)
    if found is None:
        raise WorkflowError.of(registry.unknown(name), "unknown_node_type")
    return [found]


def _listing(node_types: list[NodeType]) -> str:
    by_category: dict[str, list[NodeType]] = defaultdict(list)
    for node_type in node_types:
        by_category[node_type.category].append(node_type)
    lines = []
    for category, members in by_category.items():
        lines.append(category)
        lines += [f"  {member.name:28} {member.help.splitlines()[0] if member.help else ''}" for member in members]
    return "\n".join(lines)


def _details(node_type: NodeType) -> str:
    lines = [f"{node_type.display_name} ({node_type.name}), {node_type.category}", "", node_type.help, "", "inputs"]
    lines += [f"  {port.name:20} {_facts(port):32} {port.help}" for port in node_type.ports.inputs]
    lines.append("outputs")
    lines += [
        f"  {port.name:20} {str(port.type) + (', every step' if port.per_step else ''):32} {port.help}"
        for port in node_type.ports.outputs
    ]
    return "\n".join(lines)


def _facts(port: InputPort) -> str:
    facts = [str(port.type)]
    if port.choices:
        facts = ["/".join(port.choices)]
    if port.minimum is not None or port.maximum is not None:
        ends = ("" if end is None else bound(end) for end in (port.minimum, port.maximum))
        facts.append("..".join(ends))
    if port.required:
        facts.append("required")
    elif port.default not in (None, ""):
        facts.append(f"= {port.default}")
    return " ".join(facts)
