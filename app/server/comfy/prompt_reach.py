"""Which nodes of a prompt its outputs need, and which outputs need a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from app.server.comfy.prompt_node import PromptNode

MAX_DEPENDENTS = 1_000_000
"""Most output ids that are worked out for all nodes with errors together. A chain with an output at each of its nodes
would have a number of them that grows with the square of its length; past this, lists stay incomplete."""


class Reach:
    """What the outputs of a prompt need.

    nodes: by id, in the order in which following the wires from the outputs meets them.
    wired_by: for each node that was not met as an output, the node and the input that it was first met through.
    """

    def __init__(self, outputs: Sequence[str], read: Callable[[str], PromptNode]) -> None:
        """Follow the wires backwards from the outputs; `read` is called once for each node that is met."""
        self.nodes: dict[str, PromptNode] = {}
        self.wired_by: dict[str, tuple[str, str]] = {}
        self._outputs = {output: index for index, output in enumerate(outputs)}
        self._order: list[str] = []  # sources before what they feed, as far as circles allow
        for output in outputs:
            if output not in self.nodes:
                self._follow(output, read)
        self._fed: dict[str, list[str]] = {node_id: [] for node_id in self.nodes}
        for node_id, node in self.nodes.items():
            for _, source in node.sources:
                self._fed[source].append(node_id)

    def _follow(self, start: str, read: Callable[[str], PromptNode]) -> None:
        self.nodes[start] = read(start)
        path = [(start, iter(self.nodes[start].sources))]
        while path:
            node_id, sources = path[-1]
            for name, source in sources:
                if source not in self.nodes:
                    self.nodes[source] = read(source)
                    self.wired_by[source] = (node_id, name)
                    path.append((source, iter(self.nodes[source].sources)))
                    break
            else:
                self._order.append(node_id)
                path.pop()

    def spoil(self, node_id: str, spoiled: set[str]) -> None:
        """Add to `spoiled` a node and all that it feeds."""
        work = [node_id]
        while work:
            reached = work.pop()
            if reached not in spoiled:
                spoiled.add(reached)
                work += self._fed[reached]

    def needed_by(self, outputs: Iterable[str]) -> set[str]:
        """Return the outputs and every node that they need."""
        needed: set[str] = set()
        work = list(outputs)
        while work:
            node_id = work.pop()
            if node_id not in needed:
                needed.add(node_id)
                work += [source for _, source in self.nodes[node_id].sources]
        return needed

    def dependents(self, among: set[str]) -> Mapping[str, frozenset[int]]:
        """Return the indices of the outputs that need a node. among: the nodes asked for and all that they feed.

        A chain shares one set, so that it costs no more than its length. Without circles the first sweep finds all;
        the others are for values that a loop carries back.
        """
        found = {node_id: frozenset[int]() for node_id in among}
        found |= {output: frozenset({index}) for output, index in self._outputs.items() if output in among}
        order = [node_id for node_id in reversed(self._order) if node_id in among]
        left = MAX_DEPENDENTS
        changed = True
        while changed:
            changed = False
            for node_id in order:
                before = found[node_id]
                joined, size = _joined(before, (found[follower] for follower in self._fed[node_id]))
                left -= size
                if left < 0:
                    return found
                if len(joined) > len(before):
                    found[node_id] = joined
                    changed = True
        return found


def _joined(own: frozenset[int], others: Iterable[frozenset[int]]) -> tuple[frozenset[int], int]:
    """Return the union of sets, one of them where it is that one, and how many items were looked at."""
    distinct = {id(indices): indices for indices in (own, *others) if indices}
    if len(distinct) <= 1:
        return next(iter(distinct.values()), own), 0
    union = own.union(*distinct.values())
    return own if len(union) == len(own) else union, sum(map(len, distinct.values()))
