"""What the server sees of a worker: one interface, whatever machine the worker lives on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from app.graph.node import Ports
from app.worker.settings import Job


class WorkerListener(Protocol):
    """What a home tells, on the event loop's thread."""

    def worker_ready(self, node_types: Sequence[Mapping[str, Any]], extensions: Sequence[Mapping[str, Any]]) -> None:
        """A worker has started. node_types: those of extensions, as `node_types.node_type_json` made them."""

    def worker_events(self, run: str, events: Sequence[dict[str, Any]], blob: bytes) -> None:
        """A run sends events, as `event_json` made them; one of type preview has its picture at `blob` in the bytes."""

    def worker_ended(self, record: dict[str, Any]) -> None:
        """A run has ended: the message `ended` of the outbox."""

    def worker_died(self, sentence: str, run: str, node: str) -> None:
        """The worker is gone, and what it ran with it. sentence: how it ended. A new one starts by itself.

        run, node: what it had begun last; empty when it had begun nothing, or when that is not known.
        """

    def worker_stats(self, stats: Mapping[str, Any]) -> None:
        """Counters of the worker, once a second."""


class WorkerHome(Protocol):
    """Where a worker lives. At most one job is given at a time; the next after `worker_ended` or `worker_died`."""

    async def start(self, listener: WorkerListener) -> None:
        """Start a worker and keep one running; returns before it is ready."""

    def submit(self, job: Job) -> None:
        """Run a job on the worker that is ready."""

    async def steer(self, run: str, changes: Sequence[tuple[str, str, Any]]) -> bool:
        """Change (node id, input, value) of the run that goes on; False when that needs a new run.

        Raises WorkflowError when the workflow would not run so.
        """

    def cancel(self, run: str) -> None:
        """End a run; its worker is ended too if the run does not stop within a grace time."""

    def free(self, *, unload_models: bool, free_memory: bool) -> None:
        """Unload sessions that are not in use, and forget cached outputs."""

    async def ports(self, class_type: str, literals: Mapping[str, Any]) -> Ports:
        """Return the ports of a node of an extension's type. Raises WorkflowError."""

    async def close(self) -> None:
        """End the worker."""
