"""Which nodes of a prompt its outputs need, and which outputs need a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from app.server.comfy.prompt_node import PromptNode


class Reach(NamedTuple):
    """What the outputs need.

    nodes: by id, in the order in which following the wires from the outputs meets them.
    outputs: for each node, the indices of the outputs that need it.
    wired_by: for each node that is no output, the node and the input that it was first met through.
    """

    nodes: dict[str, PromptNode]
    outputs: dict[str, frozenset[int]]
    wired_by: dict[str, tuple[str, str]]


def reach_of(outputs: Sequence[str], read: Callable[[str], PromptNode]) -> Reach:
    """Follow the wires backwards from the outputs; `read` is called once for each node that is met."""
    nodes: dict[str, PromptNode] = {}
    wired_by: dict[str, tuple[str, str]] = {}
    order: list[str] = []
    for output in outputs:
        if output in nodes:
            continue
        nodes[output] = read(output)
        path = [(output, iter(nodes[output].sources))]
        while path:
            node_id, sources = path[-1]
            for name, source in sources:
                if source not in nodes:
                    nodes[source] = read(source)
                    wired_by[source] = (node_id, name)
                    path.append((source, iter(nodes[source].sources)))
                    break
            else:
                order.append(node_id)
                path.pop()
    return Reach(nodes, _needed_by(outputs, nodes, order), wired_by)


def _needed_by(
    outputs: Sequence[str], nodes: Mapping[str, PromptNode], order: Sequence[str]
) -> dict[str, frozenset[int]]:
    """Return for each node the indices of the outputs that need it. order: sources before what they feed.

    A chain shares one set, so that it costs no more than its length. Without circles one sweep is all; every sweep
    after the first exists for values that a loop carries back.
    """
    found: dict[str, frozenset[int]] = dict.fromkeys(nodes, frozenset())
    found.update((output, frozenset({index})) for index, output in enumerate(outputs))
    fed: dict[str, list[str]] = {node_id: [] for node_id in nodes}
    for node_id, node in nodes.items():
        for _, source in node.sources:
            fed[source].append(node_id)
    changed = True
    while changed:
        changed = False
        for node_id in reversed(order):
            joined = _joined(found[node_id], (found[follower] for follower in fed[node_id]))
            if len(joined) != len(found[node_id]):
                found[node_id] = joined
                changed = True
    return found


def _joined(own: frozenset[int], others: Iterable[frozenset[int]]) -> frozenset[int]:
    distinct = {id(indices): indices for indices in (own, *others) if indices}
    if len(distinct) <= 1:
        return next(iter(distinct.values()), own)
    return own.union(*distinct.values())
