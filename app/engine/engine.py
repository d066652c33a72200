"""The engine: what all runs of a process share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from app.engine.cache import OutputCache
from app.engine.events import Event
from app.engine.run import Run, RunRecord
from app.folders import Folders
from app.graph.document import Workflow
from app.graph.registry import Registry
from app.runtime.sessions import SessionPool


def ignore(event: Event) -> None:
    """Do nothing with an event."""


@dataclass(slots=True)
class Engine:
    """Registry, folders, loaded sessions and cached outputs. device: what components marked `auto` run on."""

    registry: Registry
    folders: Folders = field(default_factory=Folders)
    sessions: SessionPool = field(default_factory=SessionPool)
    cache: OutputCache = field(default_factory=OutputCache)
    device: str = "auto"

    def start(
        self,
        workflow: Workflow,
        emit: Callable[[Event], None] = ignore,
        targets: Iterable[str] | None = None,
        id: str = "",
    ) -> Run:
        """Return a run that is ready to be executed. Raises WorkflowError when the workflow cannot run.

        emit: receives every event, on the thread that executes the run; it must not block.
        targets: run only what these nodes need; all output nodes when None.
        id: the run's id, a new one when empty.
        """
        return Run(self, workflow, emit, targets, id)

    def run(
        self, workflow: Workflow, emit: Callable[[Event], None] = ignore, targets: Iterable[str] | None = None
    ) -> RunRecord:
        """Run a workflow to its end. Raises WorkflowError only when it cannot be started."""
        return self.start(workflow, emit, targets).execute()
