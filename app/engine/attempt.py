"""One attempt at a plan: takes what it can from the cache, computes the rest in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from app.engine.cache import Entry
from app.engine.cancel import CancelToken, RunCancelled
from app.engine.context import NodeContext
from app.engine.events import Cached, Event, NodeFinished, NodeStarted, Output, Preview
from app.engine.loop import LoopRunner, Runner, Steering
from app.engine.runner import NodeRunner, link_folds
from app.graph.errors import InputError, Problem, WorkflowError
from app.graph.graph import Graph, GraphNode, Source
from app.graph.plan import Item, LoopPlan, Plan
from app.graph.signature import loop_signature, node_signature

if TYPE_CHECKING:
    from app.engine.engine import Engine


class Attempt:
    """One attempt at a plan.

    cached: nodes taken from the cache or not needed because what depends on them was.
    """

    def __init__(
        self,
        engine: Engine,
        graph: Graph,
        plan: Plan,
        document: Callable[[], dict[str, Any]],
        emit: Callable[[Event], None],
    ) -> None:
        self.cancel = CancelToken()
        self.cached: list[str] = []
        self._engine = engine
        self._graph = graph
        self._plan = plan
        self._document = document
        self._emit = emit
        self._shown: dict[str | int, Output | Preview] = {}
        self._steering = Steering()
        self._values: list[Any] = []
        self._runners: dict[str, NodeRunner] = {}
        self._items = {_head(item): item for item in plan.items}
        self._item_of = {node: _head(item) for item in plan.items for node in _nodes(item)}
        self._loop_runners: list[LoopRunner] = []
        self._finished: set[str] = set()
        self._from_cache: set[str] = set()

    def execute(self) -> None:
        """Run the plan to its end. Raises WorkflowError and RunCancelled."""
        base_by_node = self._allocate()
        signatures = self._signatures()
        entries, wanted = self._demand(signatures)
        self._from_cache = set(entries)
        self.cached = [node for item in self._plan.items if _head(item) not in wanted for node in _nodes(item)]
        if self.cached:
            self._emit(Cached(tuple(self.cached)))
        for item in self._plan.items:
            head = _head(item)
            if head in entries:
                self._take(item, entries[head], base_by_node)
        tainted: set[str] = set()
        for item in self._plan.items:
            head = _head(item)
            if head in wanted:
                runner = self._runner(item, base_by_node)
                self._compute(head, runner)
                self._close(item)
                if self._is_steered(item) or any(source in tainted for source in self._sources(item)):
                    tainted.add(head)
                else:
                    entry = Entry(self._outputs(head, base_by_node), self._recall(item))
                    self._engine.cache.put(signatures[head], entry)

    def _allocate(self) -> dict[str, int]:
        base_by_node: dict[str, int] = {}
        slots = 0
        for node in self._graph.values():
            base_by_node[node.id] = slots
            slots += len(node.ports.outputs)
        self._values = [None] * slots
        return base_by_node

    def _signatures(self) -> dict[str, bytes]:
        """Return the signature of every item of the outermost level, by its head.

        What writes files counts with the folder that it writes to: another folder has not got them yet.
        """
        signatures: dict[str, bytes] = {}
        folder = str(self._engine.folders.output).encode("utf-8", "surrogateescape")

        def of_source(source: Source) -> bytes:
            return signatures[source.node] + source.output.to_bytes(4, "little")

        for item in self._plan.items:
            header = self._graph[_head(item)]
            try:
                if isinstance(item, LoopPlan):
                    body = [self._graph[node] for node in item.nodes()]
                    signatures[header.id] = loop_signature(header, body, of_source)
                else:
                    signatures[header.id] = node_signature(header, of_source)
                if any(self._graph[node].type.output_node for node in _nodes(item)):
                    signatures[header.id] += folder
            except (InputError, OSError) as error:  # a model file that has gone since validation
                raise WorkflowError([self._gone(header, error)]) from error
        return signatures

    def _gone(self, node: GraphNode, error: InputError | OSError) -> Problem:
        if isinstance(error, InputError):
            return error.at(node.id, node.title)
        message = f"found a file that cannot be read any more ({error}); put it back or choose another"
        return Problem(message, "file_missing", node.id, node.title)

    def _demand(self, signatures: dict[str, bytes]) -> tuple[dict[str, Entry], set[str]]:
        """Return the cached entries that are used, and the heads of the items that must be computed."""
        read = {source for item in self._plan.items for source in self._sources(item)}
        demanded = {
            _head(item)
            for item in self._plan.items
            if _head(item) not in read or any(self._graph[node].type.output_node for node in _nodes(item))
        }
        entries: dict[str, Entry] = {}
        wanted: set[str] = set()
        for item in reversed(self._plan.items):
            head = _head(item)
            if head not in demanded:
                continue
            entry = self._engine.cache.get(signatures[head])
            if entry is not None and entry.is_whole():
                entries[head] = entry
            else:
                wanted.add(head)
                demanded.update(self._sources(item))
        return entries, wanted

    def _compute(self, head: str, runner: Runner) -> None:
        if self.cancel.is_set:
            raise RunCancelled
        self._shown.clear()
        self._emit(NodeStarted(head))
        started = perf_counter()
        runner.run()
        self._finished.add(head)
        self._emit(NodeFinished(head, perf_counter() - started))

    def _take(self, item: Item, entry: Entry, base_by_node: dict[str, int]) -> None:
        """Put an entry's values into the node's slots and show again what it showed."""
        head = _head(item)
        self._finished.add(head)
        base = base_by_node[head]
        self._values[base : base + len(entry.values)] = entry.values
        if entry.shown:
            nodes = list(_nodes(item))
            for place, event in entry.shown:
                self._emit(replace(event, node=nodes[place]))

    def _recall(self, item: Item) -> tuple[tuple[int, Output | Preview], ...]:
        """Return what the item showed, by the place of the node in it."""
        if not self._shown:
            return ()
        places = {node: place for place, node in enumerate(_nodes(item))}
        return tuple((places[event.node], event) for event in self._shown.values())

    def _runner(self, item: Item, base_by_node: dict[str, int]) -> Runner:
        """Return the runner of an item, made with all that runs inside of it."""
        made: dict[str, NodeRunner] = {}
        for node in _nodes(item):
            made[node] = NodeRunner(self._graph[node], self._values, base_by_node, self._context, self.cancel)
        self._runners.update(made)
        link_folds(made, {node: self._plan.folds[node] for node in made if node in self._plan.folds})
        return self._nest(item)

    def _nest(self, item: Item) -> Runner:
        if isinstance(item, str):
            return self._runners[item]
        body = [self._nest(inner) for inner in item.body]
        header = self._runners[item.header]
        loop = LoopRunner(header, item, body, self._runners, self._steering, self._emit)
        self._loop_runners.append(loop)
        return loop

    def _context(self, node: GraphNode) -> NodeContext:
        return NodeContext(
            node=node.id,
            title=node.title,
            folders=self._engine.folders,
            sessions=self._engine.sessions,
            cancel=self.cancel,
            emit=self._show,
            document=self._document() if node.type.output_node else {},
            device=self._engine.device,
        )

    def _show(self, event: Event) -> None:
        """Pass on what a node shows and remember it for the cache: every output, and each node's last preview."""
        if isinstance(event, Preview):
            self._shown[event.node] = event
        elif isinstance(event, Output):
            self._shown[len(self._shown)] = event
        self._emit(event)

    def _outputs(self, head: str, base_by_node: dict[str, int]) -> list[Any]:
        """Return the outputs of an item; per-step ones have no value after the loop."""
        base = base_by_node[head]
        ports = self._graph[head].ports.outputs
        return [None if port.per_step else self._values[base + index] for index, port in enumerate(ports)]

    def _sources(self, item: Item) -> Iterable[str]:
        """Yield the heads of the items that an item reads from."""
        head = _head(item)
        for node in _nodes(item):
            for source in self._graph[node].links.values():
                other = self._item_of[source.node]
                if other != head:
                    yield other

    def can_steer(self, node: str, name: str) -> bool:
        """Return whether a change of this input can act within this attempt, at the next step of a loop around it."""
        head = self._item_of.get(node)
        if head is None or head in self._finished or not isinstance(self._items[head], LoopPlan):
            return False
        port = self._graph[node].ports.input(name)
        if port is None or port.role != "steerable" or name in self._graph[node].links:
            return False
        return not any(head in self._sources(item) for item in self._plan.items if _head(item) in self._from_cache)

    def steer(self, changes: Mapping[tuple[str, str], Any]) -> None:
        """Let the changes act from the next pass of the loops around their nodes."""
        self._steering.put(changes)

    def missed_steering(self) -> str | None:
        """Return the node of a change that came too late for the last pass, or None."""
        return self._steering.first_waiting()

    @property
    def is_steered(self) -> bool:
        """Whether any live value acted."""
        return bool(self._steering.steered)

    def _is_steered(self, item: Item) -> bool:
        return not self._steering.steered.isdisjoint(_nodes(item))

    def close(self) -> None:
        """Give back everything the nodes hold."""
        for runner in self._runners.values():
            runner.close()

    def _close(self, item: Item) -> None:
        """Give back what an item holds, so that its sessions may make room for those of the next items."""
        for node in _nodes(item):
            self._runners[node].close()

    def add_times(self, seconds_by_node: dict[str, float], step_seconds_by_loop: dict[str, list[float]]) -> None:
        """Add this attempt's times to a record."""
        for node, runner in self._runners.items():
            seconds_by_node[node] = seconds_by_node.get(node, 0.0) + runner.seconds
        for loop in self._loop_runners:
            step_seconds_by_loop.setdefault(loop.node.id, []).extend(loop.step_seconds)


def _head(item: Item) -> str:
    return item.header if isinstance(item, LoopPlan) else item


def _nodes(item: Item) -> Iterable[str]:
    return (item.header, *item.nodes()) if isinstance(item, LoopPlan) else (item,)
