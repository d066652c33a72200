"""Guidance scales that nothing can make use of: no pair can arrive where they fold one."""

from __future__ import annotations

from collections.abc import Iterator

from app.graph.errors import Problem
from app.graph.graph import Graph, GraphNode
from app.graph.node import InputPort

_LIBRARY = "nodes."


def scales_without_pair(graph: Graph) -> Iterator[Problem]:
    """Yield a problem for each input that folds guidance pairs at a scale other than 1 where none can arrive.

    Only what is sure is reported: a wired scale may be 1, and a node of an extension may give pairs.
    """
    folding = [
        (node, port)
        for node in graph.values()
        for port in node.ports.inputs
        if port.cfg and port.name in node.links and node.literals.get(port.cfg, 1) != 1
    ]
    if not folding:
        return
    reached = _reached_by_pairs(graph)
    for node, port in folding:
        if node.links[port.name].node not in reached:
            yield _problem(node, port)


def _reached_by_pairs(graph: Graph) -> set[str]:
    """Return the nodes that give pairs, and all that a wire from them leads to, through however many nodes."""
    followers: dict[str, list[str]] = {}
    for node in graph.values():
        for source in node.links.values():
            followers.setdefault(source.node, []).append(node.id)
    waiting = [node.id for node in graph.values() if _may_give_pair(node)]
    reached = set(waiting)
    while waiting:
        for follower in followers.get(waiting.pop(), ()):
            if follower not in reached:
                reached.add(follower)
                waiting.append(follower)
    return reached


def _may_give_pair(node: GraphNode) -> bool:
    return not node.type.source.startswith(_LIBRARY) or any(port.gives_pair for port in node.ports.outputs)


def _problem(node: GraphNode, port: InputPort) -> Problem:
    scale = node.literals[port.cfg]
    message = (
        f"found {scale:g} while no guidance pair can arrive at {port.name}, accepted 1; set it to 1, or join the "
        "positive and the negative input of the denoiser with a Guidance Pair node"
    )
    return Problem(message, "guidance_without_pair", node.id, node.title, port.cfg)
