"""A workflow whose node types, ports and links are known: what validation gives and planning takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from app.graph.node import NodeType, OutputPort, Ports


class Source(NamedTuple):
    """Where a link starts: a node id and the index of one of its outputs."""

    node: str
    output: int


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One node of a resolved workflow.

    ports: its own ports, read from its files where the type has dynamic ones.
    literals: value by input name, defaults filled in, for every input without a link that has a value.
    links: source by input name.
    """

    id: str
    title: str
    type: NodeType
    ports: Ports
    literals: Mapping[str, Any]
    links: Mapping[str, Source]

    def output(self, index: int) -> OutputPort:
        """Return one of the node's output ports."""
        return self.ports.outputs[index]


Graph: TypeAlias = dict[str, GraphNode]
"""Nodes by id, in document order."""
