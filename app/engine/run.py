"""One run of a workflow: attempts at its plan, restarted when an override cannot be steered."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from app.engine.attempt import Attempt
from app.engine.cancel import RunCancelled
from app.engine.events import Cancelled, Done, Event, Failed, Output, Queued, Restarted, Started
from app.graph.document import Workflow
from app.graph.errors import Problem, WorkflowError
from app.graph.graph import Graph
from app.graph.plan import Plan, plan
from app.graph.validation import validate

if TYPE_CHECKING:
    from app.engine.engine import Engine

log = logging.getLogger(__name__)

Status = Literal["queued", "running", "done", "failed", "cancelled"]


@dataclass(slots=True)
class RunRecord:
    """What came of a run.

    seconds_by_node: wall time of each computed node, a loop's body included in its loop and listed by itself too.
    step_seconds_by_loop: wall time of every step of every loop that ran.
    cached: nodes that were not computed because an earlier run had.
    session_loads, session_hits: ONNX Runtime sessions loaded, and found loaded, during this run.
    """

    status: Status = "queued"
    outputs: list[Output] = field(default_factory=list)
    problems: tuple[Problem, ...] = ()
    seconds: float = 0.0
    seconds_by_node: dict[str, float] = field(default_factory=dict)
    step_seconds_by_loop: dict[str, list[float]] = field(default_factory=dict)
    cached: list[str] = field(default_factory=list)
    session_loads: int = 0
    session_hits: int = 0


def resolve(engine: Engine, workflow: Workflow, targets: Iterable[str] | None = None) -> tuple[Graph, Plan]:
    """Validate and plan a workflow. Raises WorkflowError with everything that is wrong."""
    graph, problems = validate(workflow, engine.registry, targets)
    if problems:
        raise WorkflowError(problems)
    return graph, plan(graph)


class Run:
    """One run. `execute` blocks; `override` and `cancel` may be called from other threads meanwhile."""

    def __init__(
        self,
        engine: Engine,
        workflow: Workflow,
        emit: Callable[[Event], None],
        targets: Iterable[str] | None = None,
        id: str = "",
    ) -> None:
        """Raises WorkflowError when the workflow cannot run. id: a new one when empty."""
        self.id = id or uuid.uuid4().hex
        self.workflow = workflow
        self.record = RunRecord()
        self._engine = engine
        self._emit = emit
        self._targets = None if targets is None else tuple(targets)
        # Reentrant: a listener may override or cancel while it hears of a restart.
        self._lock = threading.RLock()
        self._json: tuple[Workflow, dict[str, Any]] | None = None
        self._graph, self._plan = resolve(engine, workflow, self._targets)
        self._attempt = self._new_attempt()
        self._restart_from: str | None = None
        self._is_cancelled = False
        emit(Queued(self.id))

    def execute(self) -> RunRecord:
        """Run to the end and return the record; problems are in it, not raised."""
        record = self.record
        record.status = "running"
        started = perf_counter()
        sessions = self._engine.sessions
        loads, hits = sessions.loads, sessions.hits
        self._emit(Started(self.id, tuple(self._plan.nodes())))
        while record.status == "running":
            attempt = self._attempt
            try:
                attempt.execute()
                self._after(attempt, finished=True)
            except RunCancelled:
                self._after(attempt, finished=False)
            except WorkflowError as error:
                record.status, record.problems = "failed", error.problems
            except Exception as error:
                log.exception("run %s failed inside the engine", self.id)
                message = f"failed inside Ortloom with {type(error).__name__}: {error}; the log has the details"
                record.status, record.problems = "failed", (Problem(message, "internal"),)
            finally:
                attempt.close()
                attempt.add_times(record.seconds_by_node, record.step_seconds_by_loop)
        record.seconds = perf_counter() - started
        record.cached = attempt.cached
        record.session_loads, record.session_hits = sessions.loads - loads, sessions.hits - hits
        self._emit(self._last_event())
        return record

    def override(self, changes: Mapping[tuple[str, str], Any]) -> bool:
        """Change literal inputs, (node id, input name) -> value, of a run that has not ended.

        Returns True when every change acts from the next step on, False when the run starts again from the first
        node that the changes reach. Raises WorkflowError, and changes nothing, when the workflow would not run so.
        """
        with self._lock:
            if self.steer(changes):
                return True
            workflow = self.workflow.with_inputs(changes)
            self._graph, self._plan = resolve(self._engine, workflow, self._targets)
            self.workflow = workflow
            self._restart_from = next(iter(changes))[0]
            self._attempt.cancel.cancel()
            return False

    def steer(self, changes: Mapping[tuple[str, str], Any]) -> bool:
        """Change literal inputs if all of them can act from the next step on; else change nothing and return False.

        Raises WorkflowError, and changes nothing, when the run has ended or the workflow would not run so.
        """
        with self._lock:
            if self.record.status not in ("queued", "running"):
                message = (
                    f"found a run that has ended ({self.record.status}), accepted one that goes on; start a new run"
                )
                raise WorkflowError.of(message, "run_ended")
            workflow = self.workflow.with_inputs(changes)
            resolve(self._engine, workflow, self._targets)
            if self._restart_from is not None or not all(self._attempt.can_steer(*place) for place in changes):
                return False
            self.workflow = workflow
            self._attempt.steer(changes)
            return True

    @property
    def is_steered(self) -> bool:
        """Whether live values acted in the attempt that ran last: its results mix values and were not cached."""
        return self._attempt.is_steered

    def cancel(self) -> None:
        """Stop the run: between nodes, between steps, or inside a session call."""
        with self._lock:
            self._is_cancelled = True
            self._attempt.cancel.cancel()

    def _after(self, attempt: Attempt, *, finished: bool) -> None:
        """Decide, under the lock, how to go on after an attempt: end the run, or start again for an override."""
        with self._lock:
            missed = attempt.missed_steering()
            if self._is_cancelled or not (finished or self._restart_from):
                self.record.status = "cancelled"
            elif finished and self._restart_from is None and missed is None:
                self.record.status = "done"
            else:
                if self._restart_from is None:
                    self._restart_from = missed
                    self._graph, self._plan = resolve(self._engine, self.workflow, self._targets)
                self._emit(Restarted(self._restart_from or ""))
                self._restart_from = None
                self.record.outputs.clear()
                self._attempt = self._new_attempt()

    def _new_attempt(self) -> Attempt:
        return Attempt(self._engine, self._graph, self._plan, self._document, self._forward)

    def _document(self) -> dict[str, Any]:
        """Return the workflow as it is now, ready to be written into pictures; made once for all of them."""
        if self._json is None or self._json[0] is not self.workflow:
            self._json = (self.workflow, self.workflow.to_json())
        return self._json[1]

    def _forward(self, event: Event) -> None:
        if isinstance(event, Output):
            self.record.outputs.append(event)
        self._emit(event)

    def _last_event(self) -> Event:
        record = self.record
        if record.status == "failed":
            return Failed(record.problems)
        return Cancelled() if record.status == "cancelled" else Done(record.seconds, record.seconds_by_node)
