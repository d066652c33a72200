"""Finding loops: strongly connected components, their headers, and the links that close them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from app.graph.errors import Problem
from app.graph.graph import Graph

ROOT = -1
"""The level outside of all loops."""


class Edge(NamedTuple):
    """A link between nodes by index: output number `output` of `source` into input `input` of `target`."""

    source: int
    output: int
    target: int
    input: str


class Wiring:
    """A graph's links by node index, with what planning learns about them.

    closing: for each header, the inputs that are wired from inside its loop.
    loop_of: innermost loop around each node, by the header's index, or ROOT.
    depth: of each loop's inside; 0 for ROOT.
    """

    def __init__(self, graph: Graph) -> None:
        self.nodes = list(graph.values())
        index_by_id = {node.id: index for index, node in enumerate(self.nodes)}
        self._incoming: list[list[Edge]] = [[] for _ in self.nodes]
        self._outgoing: list[list[Edge]] = [[] for _ in self.nodes]
        for target, node in enumerate(self.nodes):
            for name, source in node.links.items():
                edge = Edge(index_by_id[source.node], source.output, target, name)
                self._incoming[target].append(edge)
                self._outgoing[edge.source].append(edge)
        self.loops = [index for index, node in enumerate(self.nodes) if node.type.is_loop]
        self._is_loop = set(self.loops)
        self.closing: dict[int, set[str]] = {}
        self.loop_of = [ROOT] * len(self.nodes)
        self.depth: dict[int, int] = {ROOT: 0}
        self._topological: list[int] | None = None

    def edges(self) -> Iterator[Edge]:
        """Yield every edge, closing ones included."""
        for edges in self._incoming:
            yield from edges

    def incoming(self, index: int) -> Sequence[Edge]:
        """Return the edges into a node that do not close its loop."""
        closing = self.closing.get(index)
        edges = self._incoming[index]
        return [edge for edge in edges if edge.input not in closing] if closing else edges

    def outgoing(self, index: int) -> Sequence[Edge]:
        """Return the edges out of a node, closing ones included."""
        return self._outgoing[index]

    def closing_edges(self, loop: int) -> list[Edge]:
        """Return the edges that close a loop, and those into its feedback inputs from elsewhere."""
        return [edge for edge in self._incoming[loop] if self.is_closing(edge) or self.role(edge) == "feedback"]

    def is_closing(self, edge: Edge) -> bool:
        """Return whether the edge enters a header from inside its loop."""
        return edge.input in self.closing.get(edge.target, ())

    def is_per_step(self, edge: Edge) -> bool:
        """Return whether the edge carries a value that changes on every pass of its source's loop."""
        return edge.source in self._is_loop and self.nodes[edge.source].output(edge.output).per_step

    def is_result(self, edge: Edge) -> bool:
        """Return whether the edge carries a result of a loop."""
        return edge.source in self._is_loop and not self.nodes[edge.source].output(edge.output).per_step

    def loop_of_value(self, edge: Edge) -> int:
        """Return the innermost loop on whose passes the edge's value changes, or ROOT."""
        return edge.source if self.is_per_step(edge) else self.loop_of[edge.source]

    def enter(self, index: int, loop: int) -> None:
        """Place a node in a loop."""
        self.loop_of[index] = loop
        if index in self._is_loop:
            self.depth[index] = self.depth[loop] + 1

    def is_inside(self, inner: int, outer: int) -> bool:
        """Return whether loop `inner` is `outer` or lies inside of it."""
        while self.depth[inner] > self.depth[outer]:
            inner = self.loop_of[inner]
        return inner == outer

    def ancestor_at(self, index: int, level: int) -> int:
        """Return the node itself, or the header of the loop around it, that is an item of `level`."""
        while self.loop_of[index] != level:
            index = self.loop_of[index]
        return index

    def topological(self) -> list[int]:
        """Return the node indices in topological order, closing edges left out."""
        if self._topological is None:
            waits = [len(self.incoming(index)) for index in range(len(self.nodes))]
            order = [index for index, count in enumerate(waits) if count == 0]
            for index in order:
                for edge in self._outgoing[index]:
                    if not self.is_closing(edge):
                        waits[edge.target] -= 1
                        if waits[edge.target] == 0:
                            order.append(edge.target)
            self._topological = order
        return self._topological

    def name(self, index: int) -> str:
        """Return a node's name for a sentence."""
        node = self.nodes[index]
        return f"{node.title} (node {node.id})" if node.title else f"node {node.id}"

    def describe_source(self, edge: Edge) -> str:
        """Return where an edge comes from, for a sentence."""
        return f"{self.nodes[edge.source].output(edge.output).name} of {self.name(edge.source)}"

    def role(self, edge: Edge) -> str:
        """Return the role of the edge's input port."""
        port = self.nodes[edge.target].ports.input(edge.input)
        return port.role if port else "input"


def find_loops(wiring: Wiring) -> list[Problem]:
    """Fill `wiring.closing` for every loop, inner ones by recursion; return the problems found."""
    problems: list[Problem] = []
    work = [list(range(len(wiring.nodes)))]
    while work:
        members = work.pop()
        inside = bytearray(len(wiring.nodes))
        for index in members:
            inside[index] = 1
        for component in _components(wiring, members, inside):
            header = _header(wiring, component, problems)
            if header is None:
                continue
            _close(wiring, header, set(component), problems)
            if len(component) > 1:
                work.append([index for index in component if index != header])
    return problems


def _components(wiring: Wiring, members: Sequence[int], inside: bytearray) -> list[list[int]]:
    """Return the strongly connected components that contain a cycle (Tarjan 1972, iterative)."""
    found: list[list[int]] = []
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    for start in members:
        if start in number:
            continue
        number[start] = low[start] = len(number)
        stack.append(start)
        on_stack.add(start)
        path = [(start, iter(wiring.outgoing(start)))]
        while path:
            index, edges = path[-1]
            for edge in edges:
                target = edge.target
                if not inside[target] or wiring.is_closing(edge):
                    continue
                if target not in number:
                    number[target] = low[target] = len(number)
                    stack.append(target)
                    on_stack.add(target)
                    path.append((target, iter(wiring.outgoing(target))))
                    break
                if target in on_stack:
                    low[index] = min(low[index], number[target])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[index])
                if low[index] == number[index]:
                    component = _pop_component(stack, on_stack, index)
                    if len(component) > 1 or _has_self_link(wiring, index):
                        found.append(component)
    return found


def _pop_component(stack: list[int], on_stack: set[int], root: int) -> list[int]:
    component = []
    while True:
        index = stack.pop()
        on_stack.discard(index)
        component.append(index)
        if index == root:
            return component


def _has_self_link(wiring: Wiring, index: int) -> bool:
    return any(edge.target == index and not wiring.is_closing(edge) for edge in wiring.outgoing(index))


def _header(wiring: Wiring, component: list[int], problems: list[Problem]) -> int | None:
    """Return the header of a component, or None after reporting why there is not exactly one."""
    loops = [index for index in component if wiring.nodes[index].type.is_loop]
    if not loops:
        cycle = " -> ".join(wiring.name(index) for index in _cycle(wiring, component))
        message = (
            f"these nodes feed each other in a circle: {cycle}; remove one of the wires, or close the circle through "
            "the feedback input of a loop node such as Denoise Loop or Repeat Loop"
        )
        first = wiring.nodes[min(component)]
        problems.append(Problem(message, "cycle_without_loop", first.id, first.title))
        return None
    members = set(component)
    headers = [
        loop
        for loop in loops
        if not any(wiring.is_result(edge) and edge.target in members for edge in wiring.outgoing(loop))
    ]
    if len(headers) == 1:
        return headers[0]
    names = " and ".join(wiring.name(loop) for loop in sorted(headers or loops))
    if headers:
        message = (
            f"{names} stand in one circle of wires and none of them gives its result to another, so it cannot be told "
            "which loop is the outer one; wire a result of the inner loop into the outer loop's body"
        )
    else:
        message = (
            f"every loop in this circle of wires gives its result back into the circle ({names}), so none can be the "
            "outer one; take the result of the outer loop outside of its own body"
        )
    first = wiring.nodes[min(headers or loops)]
    problems.append(Problem(message, "competing_loops", first.id, first.title))
    return None


def _close(wiring: Wiring, header: int, members: set[int], problems: list[Problem]) -> None:
    """Record the links that enter the header from inside; refuse those into inputs that are read only once."""
    node = wiring.nodes[header]
    for edge in [edge for index in members for edge in wiring.outgoing(index) if edge.target == header]:
        if wiring.role(edge) == "input":
            accepted = ", ".join(port.name for port in node.ports.inputs if port.role != "input")
            message = (
                f"found {wiring.describe_source(edge)}, a value from inside this loop, but this input is read once "
                f"before the loop starts; wires from inside may enter only {accepted}"
            )
            problems.append(Problem(message, "feedback_into_plain_input", node.id, node.title, edge.input))
        wiring.closing.setdefault(header, set()).add(edge.input)


def _cycle(wiring: Wiring, component: list[int]) -> list[int]:
    """Return a shortest cycle through the component's first node, first node repeated at the end."""
    start = min(component)
    members = set(component)
    came_from: dict[int, int] = {}
    queue = [start]
    for index in queue:
        for edge in wiring.outgoing(index):
            if edge.target == start:
                path = [index]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return [*reversed(path), start]
            if edge.target in members and edge.target not in came_from:
                came_from[edge.target] = index
                queue.append(edge.target)
    return [start]
