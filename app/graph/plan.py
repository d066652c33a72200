"""Planning: what runs once, what runs on every pass of a loop and what runs after it, read off the wires.

1. Strongly connected components of the graph of all links. One node without a self-link is no loop.
2. A component must hold a loop node; its header is the one loop node whose results nobody inside it uses.
3. The links that enter the header from inside close the loop; without them the component is planned again, so that
   inner loops fall out, to any depth.
4. What depends on a loop's per-step outputs runs in that loop: in its body when it reaches a closing link, as a tap
   when it does not.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from app.graph.errors import Problem, WorkflowError
from app.graph.graph import Graph, GraphNode
from app.graph.loops import ROOT, Edge, Wiring, find_loops


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """A loop: its header and what runs on every pass, in order.

    taps: the items of `body` (node ids, headers of inner loops) that feed nothing back.
    closing: inputs of the header that are read at the end of a pass, because they are wired from inside.
    """

    header: str
    body: tuple[Item, ...]
    taps: frozenset[str]
    closing: frozenset[str]

    def nodes(self) -> Iterator[str]:
        """Yield the ids of all nodes in the body, inner loops included, in order."""
        for item in self.body:
            if isinstance(item, LoopPlan):
                yield item.header
                yield from item.nodes()
            else:
                yield item


Item: TypeAlias = "str | LoopPlan"


class Fold(NamedTuple):
    """Where a guidance pair is folded into one tensor: the node and its input that holds the guidance scale."""

    node: str
    cfg: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The ordered, nested list of what to run.

    folds: for each node inside a loop, where a pair that it gives is folded; None when somebody downstream needs
        both lanes whatever the guidance scale is.
    """

    items: tuple[Item, ...]
    folds: dict[str, frozenset[Fold] | None] = field(default_factory=dict)

    def nodes(self) -> Iterator[str]:
        """Yield every node id once, headers before their bodies."""
        yield from LoopPlan("", self.items, frozenset(), frozenset()).nodes()


def plan(graph: Graph) -> Plan:
    """Return the plan of a graph. Raises WorkflowError with every planning problem found."""
    wiring = Wiring(graph)
    problems = find_loops(wiring)
    if problems:
        raise WorkflowError(problems)
    problems = _place(wiring)
    if problems:
        raise WorkflowError(problems)
    items = _order(wiring)
    return Plan(items, _folds(wiring, list(Plan(items).nodes())))


def _place(wiring: Wiring) -> list[Problem]:
    """Set `wiring.loop_of` (innermost loop around each node) and `wiring.depth` (of each loop's inside)."""
    problems: list[Problem] = []
    for index in wiring.topological():
        deepest, deepest_edge = ROOT, None
        for edge in wiring.incoming(index):
            loop = wiring.loop_of_value(edge)
            if wiring.depth[loop] > wiring.depth[deepest]:
                deepest, deepest_edge = loop, edge
        wiring.enter(index, deepest)
        for edge in wiring.incoming(index):
            other = wiring.loop_of_value(edge)
            if deepest_edge is not None and not wiring.is_inside(deepest, other):
                problems.append(_mixed(wiring, index, deepest_edge, edge))
                break
    return problems or [*_results_used_inside(wiring), *_closed_from_too_deep(wiring)]


def _results_used_inside(wiring: Wiring) -> list[Problem]:
    """Find nodes that take a per-step value and, directly, a result of the same loop."""
    problems = []
    for edge in wiring.edges():
        loop, inside = edge.source, wiring.loop_of[edge.target]
        if wiring.is_result(edge) and not wiring.is_closing(edge) and wiring.is_inside(inside, loop):
            problems.append(_mixed(wiring, edge.target, _per_step_edge(wiring, edge.target, loop), edge))
    return problems


def _closed_from_too_deep(wiring: Wiring) -> list[Problem]:
    """Find loops that are closed by a value which changes within one of their passes."""
    problems = []
    for edge in (edge for loop in wiring.loops for edge in wiring.closing_edges(loop)):
        inner = wiring.loop_of_value(edge)
        if inner not in (edge.target, ROOT) and wiring.is_inside(inner, edge.target):
            header = wiring.nodes[edge.target]
            message = (
                f"found {wiring.describe_source(edge)}, which changes on every pass of {wiring.name(inner)}, accepted "
                f"a value of one pass of this loop; wire a result of {wiring.name(inner)} instead"
            )
            problems.append(Problem(message, "mixed_use", header.id, header.title, edge.input))
    return problems


def _mixed(wiring: Wiring, index: int, per_step: Edge | None, other: Edge) -> Problem:
    node = wiring.nodes[index]
    first = f"{per_step.input} from {wiring.describe_source(per_step)}" if per_step else "a per-step value"
    message = (
        f"{first} changes on every pass of a loop, but {other.input} from {wiring.describe_source(other)} does not "
        "exist then; use values of one loop's passes or values from before or after it, not both in one node"
    )
    return Problem(message, "mixed_use", node.id, node.title, other.input)


def _per_step_edge(wiring: Wiring, index: int, loop: int) -> Edge | None:
    """Return an edge into the node whose value belongs to the inside of `loop`."""
    edges = wiring.incoming(index)
    return next((edge for edge in edges if wiring.is_inside(wiring.loop_of_value(edge), loop)), None)


def _order(wiring: Wiring) -> tuple[Item, ...]:
    """Return the items of the outermost level, loops nested; raises WorkflowError on mixed use across nodes."""
    members: dict[int, list[int]] = {ROOT: []}
    for index, loop in enumerate(wiring.loop_of):
        members.setdefault(loop, []).append(index)
    followers: dict[int, list[int]] = {}
    leaders: dict[int, list[int]] = {}
    for edge in wiring.edges():
        if not wiring.is_closing(edge) and not wiring.is_per_step(edge):
            # A node inside a loop that needs a value from outside makes its whole loop wait for that value.
            waiting = wiring.ancestor_at(edge.target, wiring.loop_of[edge.source])
            followers.setdefault(edge.source, []).append(waiting)
            leaders.setdefault(waiting, []).append(edge.source)
    first = _read_early(wiring)
    ordered = {level: _sorted(wiring, nodes, followers, leaders, first) for level, nodes in members.items()}
    finished: dict[int, LoopPlan] = {}
    for loop in sorted(wiring.loops, key=lambda loop: -wiring.depth[loop]):
        body = ordered.get(loop, [])
        feeding = _feeding_back(wiring, loop, leaders)
        finished[loop] = LoopPlan(
            header=wiring.nodes[loop].id,
            body=tuple(finished.get(index) or wiring.nodes[index].id for index in body),
            taps=frozenset(wiring.nodes[index].id for index in body if index not in feeding),
            closing=frozenset(wiring.closing.get(loop, ())),
        )
    return tuple(finished.get(index) or wiring.nodes[index].id for index in ordered[ROOT])


def _sorted(
    wiring: Wiring,
    nodes: Sequence[int],
    followers: dict[int, list[int]],
    leaders: dict[int, list[int]],
    first: frozenset[int],
) -> list[int]:
    """Sort one level topologically: steering values as early as they can be, else in document order."""
    waits = {index: len(leaders.get(index, ())) for index in nodes}
    level = set(nodes)
    for index in nodes:  # values from outer levels are there before this level starts
        waits[index] -= sum(1 for leader in leaders.get(index, ()) if leader not in level)
    ready = [(index not in first, index) for index in nodes if waits[index] == 0]
    heapq.heapify(ready)
    done: list[int] = []
    while ready:
        _, index = heapq.heappop(ready)
        done.append(index)
        for follower in followers.get(index, ()):
            waits[follower] -= 1
            if waits[follower] == 0:
                heapq.heappush(ready, (follower not in first, follower))
    if len(done) < len(nodes):
        raise WorkflowError(_mixed_through_others(wiring, level - set(done), followers))
    return done


def _mixed_through_others(wiring: Wiring, stuck: set[int], followers: dict[int, list[int]]) -> list[Problem]:
    """Find nodes inside a stuck loop that wait, through other nodes, for that loop's own results."""
    problems = []
    for loop in sorted(stuck & set(wiring.loops)):
        after = _reach([loop], followers)
        for edge in wiring.edges():
            if edge.source not in after or wiring.is_inside(wiring.loop_of[edge.source], loop):
                continue
            if edge.source != loop and wiring.is_inside(wiring.loop_of[edge.target], loop):
                problems.append(_mixed(wiring, edge.target, _per_step_edge(wiring, edge.target, loop), edge))
    return problems


def _reach(start: Sequence[int], links: dict[int, list[int]]) -> set[int]:
    """Return every index that can be reached from `start`, itself only if a circle leads back."""
    seen: set[int] = set()
    work = list(start)
    while work:
        for index in links.get(work.pop(), ()):
            if index not in seen:
                seen.add(index)
                work.append(index)
    return seen


def _read_early(wiring: Wiring) -> frozenset[int]:
    """Return the nodes that guidance scales and steerable inputs depend on.

    They run first in a pass, so that a component knows whether the negative lane is needed when its turn comes.
    """
    found = [
        edge.source
        for edge in wiring.edges()
        if _port_reads_early(wiring.nodes[edge.target], edge.input) and wiring.loop_of[edge.source] != ROOT
    ]
    seen = set(found)
    while found:
        for edge in wiring.incoming(found.pop()):
            if edge.source not in seen:
                seen.add(edge.source)
                found.append(edge.source)
    return frozenset(seen)


def _port_reads_early(node: GraphNode, name: str) -> bool:
    return any(port.cfg == name or (port.name == name and port.role == "steerable") for port in node.ports.inputs)


def _feeding_back(wiring: Wiring, loop: int, leaders: dict[int, list[int]]) -> set[int]:
    """Return the items of a loop's body that reach a link which closes the loop."""
    closing = [
        wiring.ancestor_at(edge.source, loop)
        for edge in wiring.closing_edges(loop)
        if edge.source != loop and wiring.is_inside(wiring.loop_of[edge.source], loop)
    ]
    return _reach(closing, leaders) | set(closing)


def _folds(wiring: Wiring, order: Sequence[str]) -> dict[str, frozenset[Fold] | None]:
    """For each node inside a loop: the guidance scales that decide whether its negative lane is needed."""
    position = {node: place for place, node in enumerate(order)}
    folds: dict[int, frozenset[Edge] | None] = {}
    for index in reversed(wiring.topological()):
        if wiring.loop_of[index] != ROOT:
            found: frozenset[Edge] | None = frozenset()
            for edge in wiring.outgoing(index):
                step = _folds_behind(wiring, edge, folds)
                found = None if found is None or step is None else found | step
            folds[index] = found
    return {wiring.nodes[index].id: _known_in_time(wiring, index, edges, position) for index, edges in folds.items()}


def _folds_behind(wiring: Wiring, edge: Edge, folds: dict[int, frozenset[Edge] | None]) -> frozenset[Edge] | None:
    port = wiring.nodes[edge.target].ports.input(edge.input)
    if port is not None and port.cfg:
        return frozenset({edge})
    return folds.get(edge.target) if port is not None and port.pair == "lift" else None


def _known_in_time(
    wiring: Wiring, index: int, edges: frozenset[Edge] | None, position: dict[str, int]
) -> frozenset[Fold] | None:
    """Return the folds, or None if a guidance scale is not known yet when the node runs."""
    if edges is None:
        return None
    folds = set()
    for edge in edges:
        node = wiring.nodes[edge.target]
        level = edge.target if node.type.is_loop else wiring.loop_of[edge.target]
        cfg = next(port.cfg for port in node.ports.inputs if port.name == edge.input)
        source = node.links.get(cfg)
        late = source is not None and position[source.node] >= position[wiring.nodes[index].id]
        if level != wiring.loop_of[index] or late:
            return None
        folds.add(Fold(node.id, cfg))
    return frozenset(folds)
