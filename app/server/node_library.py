"""The node types that the server knows: the built-in ones, loaded after the server listens, and the worker's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from app.folders import Folders
from app.graph.document import Workflow, link_of, literal_of
from app.graph.errors import InputError, Problem, WorkflowError
from app.graph.node import NodeType, Ports
from app.graph.registry import Registry
from app.worker.node_types import node_type_of

WORKER_START_S = 60.0
"""How long a workflow with unknown node types waits for a worker that is still starting: it may know them."""
MAX_KNOWN_PORTS = 10_000

AskPorts: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[Ports]]


class NodeLibrary:
    """Loads the registry once, on a second thread, so that the first request need not wait for it.

    Extensions are code of others: only the worker imports them, and the server learns from it what they take and give.
    """

    def __init__(self, folders: Folders, ask_ports: AskPorts) -> None:
        """ask_ports: asks the worker for ports that depend on values; raises WorkflowError when it cannot tell them."""
        self._folders = folders
        self._ask_ports = ask_ports
        self._loading: asyncio.Future[Registry] | None = None
        self._of_worker: tuple[Mapping[str, Any], ...] = ()
        self._merged: Registry | None = None
        self._known_ports: dict[str, Ports | Problem] = {}
        self._is_worker_ready = asyncio.Event()
        self.extensions: tuple[Mapping[str, Any], ...] = ()

    async def registry(self) -> Registry:
        """Return the registry of all node types; the first call loads it."""
        if self._loading is None:
            self._loading = asyncio.get_running_loop().run_in_executor(None, self._load)
        builtin = await asyncio.shield(self._loading)
        if self._merged is None:
            self._merged = Registry([*builtin, *(self._node_type(data) for data in self._of_worker)])
        return self._merged

    async def registry_for(self, workflow: Workflow) -> Registry:
        """Return the registry, ready to validate this workflow."""
        registry = await self.registry()
        if any(registry.get(node.class_type) is None for node in workflow.nodes.values()):
            try:
                await asyncio.wait_for(self._is_worker_ready.wait(), WORKER_START_S)
            except TimeoutError:
                return registry
            registry = await self.registry()
        dynamic = {data["name"] for data in self._of_worker if data["has_dynamic_ports"]}
        if dynamic:
            await self._learn(workflow, registry, dynamic)
        return registry

    def worker_ready(self, node_types: Sequence[Mapping[str, Any]], extensions: Sequence[Mapping[str, Any]]) -> None:
        """Take over what a new worker knows."""
        self._of_worker = tuple(node_types)
        self.extensions = tuple(extensions)
        self._merged = None
        self._known_ports.clear()
        self._is_worker_ready.set()

    def _load(self) -> Registry:
        from nodes import builtin_registry

        return builtin_registry(self._folders)

    def _node_type(self, data: Mapping[str, Any]) -> NodeType:
        def ports_of(literals: Mapping[str, Any]) -> Ports:
            known = self._known_ports.get(_key(data["name"], literals))
            if isinstance(known, Ports):
                return known
            message = "found ports that the worker has not told, accepted known ones; try again in a moment"
            problem = known or Problem(message, "no_worker")
            raise _Refused(problem)

        return node_type_of(data, ports_of)

    async def _learn(self, workflow: Workflow, registry: Registry, dynamic: set[str]) -> None:
        """Ask for the ports of every node whose ports depend on its values."""
        if len(self._known_ports) > MAX_KNOWN_PORTS:
            self._known_ports.clear()
        for node in workflow.nodes.values():
            node_type = registry.get(node.class_type)
            if node_type is None or node.class_type not in dynamic:
                continue
            written = {name: literal_of(value) for name, value in node.inputs.items() if link_of(value) is None}
            defaults = {port.name: port.default for port in node_type.ports.inputs if port.default is not None}
            literals = defaults | {name: value for name, value in written.items() if value is not None}
            key = _key(node.class_type, literals)
            if key not in self._known_ports:
                try:
                    self._known_ports[key] = await self._ask_ports(node.class_type, literals)
                except WorkflowError as error:
                    self._known_ports[key] = error.problems[0]


class _Refused(InputError):
    """What the worker said of a node's values, in its own words."""

    def __init__(self, problem: Problem) -> None:
        Exception.__init__(self, problem.message)
        self.input = problem.input
        self.code = problem.code
        self.message = problem.message


def _key(name: str, literals: Mapping[str, Any]) -> str:
    return json.dumps([name, literals], sort_keys=True)
