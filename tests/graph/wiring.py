"""Small graphs for planning tests: nodes of three made-up types, wired by name."""

from __future__ import annotations

from typing import Any

from app.graph import socket
from app.graph.graph import Graph, GraphNode, Source
from app.graph.node import InputPort, NodeType, OutputPort, Ports


def _type(name: str, ports: Ports, is_loop: bool = False) -> NodeType:
    def prepare(context: Any, literals: Any) -> Any:
        raise AssertionError("planning prepares no node")

    return NodeType(name, name, "test", "", 1, ports, prepare, is_loop=is_loop)


PLAIN = _type("Plain", Ports(tuple(InputPort(name, socket.ANY) for name in "abc"), (OutputPort("out", socket.ANY),)))
FOLD = _type(
    "Fold",
    Ports(
        (InputPort("a", socket.ANY, pair="accept", cfg="cfg"), InputPort("cfg", socket.ANY, role="steerable")),
        (OutputPort("out", socket.ANY),),
    ),
)
LOOP = _type(
    "Loop",
    Ports(
        (
            InputPort("start", socket.ANY),
            InputPort("back", socket.ANY, role="feedback", pair="accept", cfg="cfg"),
            InputPort("back2", socket.ANY, role="feedback", pair="accept"),
            InputPort("cfg", socket.ANY, role="steerable"),
        ),
        (
            OutputPort("sample", socket.ANY, per_step=True),
            OutputPort("step", socket.ANY, per_step=True),
            OutputPort("result", socket.ANY),
        ),
    ),
    is_loop=True,
)


def graph(**links: str) -> Graph:
    """Return a graph from `name="input=source.output ..."`; a name's first letter gives its type (L loop, F fold)."""
    nodes: Graph = {}
    for name, text in links.items():
        node_type = {"L": LOOP, "F": FOLD}.get(name[0], PLAIN)
        sources = {}
        for part in text.split():
            input_name, source = part.split("=")
            node, _, output = source.partition(".")
            sources[input_name] = Source(node, {"": 0, "sample": 0, "step": 1, "result": 2}[output])
        nodes[name] = GraphNode(name, "", node_type, node_type.ports, {}, sources)
    return nodes
