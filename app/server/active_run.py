"""The run that a worker has in hand, as far as its events have told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from app.worker.settings import Job

NodeState = Literal["running", "finished", "cached"]


@dataclass(slots=True)
class NodeProgress:
    """How far a node is. step, steps: of a loop; steps is 0 when not known. seconds: when it is finished."""

    state: NodeState
    step: int = 0
    steps: int = 0
    seconds: float | None = None


@dataclass(slots=True)
class ActiveRun:
    """One run in hand.

    number: as in the history, 0 for a live revision. live: id of the live session it belongs to, or empty.
    topics: whom its events concern. class_types: node type by node id.
    current: the node outside of loop bodies that runs now. outputs: results so far.
    is_given: a worker has it. has_begun: the worker has sent something of it. is_cancelled: its end was asked for.
    """

    job: Job
    client_id: str | None
    topics: tuple[str, ...]
    number: int = 0
    live: str = ""
    revision: int = 0
    class_types: Mapping[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.time)
    nodes: dict[str, NodeProgress] = field(default_factory=dict)
    current: str | None = None
    outputs: list[dict[str, Any]] = field(default_factory=list)
    cached: list[str] = field(default_factory=list)
    is_given: bool = False
    has_begun: bool = False
    is_cancelled: bool = False
    ended: asyncio.Future[dict[str, Any]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def id(self) -> str:
        """The run's id; of a live revision `LIVE-REVISION`."""
        return self.job.id

    def take(self, event: Mapping[str, Any]) -> None:
        """Follow one event of the worker."""
        self.has_begun = True
        match event["type"]:
            case "started" | "restarted":
                self.nodes.clear()
                self.outputs.clear()
                self.cached = []
                self.current = None
            case "cached":
                self.cached = list(event["nodes"])
                self.nodes.update({node: NodeProgress("cached") for node in self.cached})
            case "node_started":
                self.current = event["node"]
                self.nodes[event["node"]] = NodeProgress("running")
            case "step_finished":
                self.nodes[event["node"]] = NodeProgress("running", event["step"], event["steps"])
            case "node_finished":
                node = self.nodes.setdefault(event["node"], NodeProgress("finished"))
                node.state, node.seconds = "finished", event["seconds"]
                self.current = None
            case "output":
                self.outputs.append(event["output"])


class RunObserver:
    """Who hears of runs: streams, clients of ComfyUI's API, metrics. Each takes what it needs, and returns at once."""

    def queue_changed(self, *, running: int, queued: int, paused: bool) -> None:
        """The queue has another length or state."""

    def run_started(self, run: ActiveRun) -> None:
        """A run was given to the worker."""

    def run_event(self, run: ActiveRun, event: Mapping[str, Any]) -> None:
        """An event of the worker; the run has taken it already."""

    def run_preview(self, run: ActiveRun, event: Mapping[str, Any], picture: bytes) -> None:
        """A picture."""

    def run_ended(self, run: ActiveRun, record: Mapping[str, Any]) -> None:
        """A run has ended and is in the history. record: as the worker sent it, `outputs` added."""

    def runs_removed(self, runs: Sequence[str], state: Literal["cancelled", "deleted"]) -> None:
        """Runs that waited will not run: they were cancelled, or deleted without a trace."""
