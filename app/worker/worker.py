"""The worker: takes messages, runs one job at a time, says what happens. It knows nothing of how messages travel."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from app.engine.engine import Engine
from app.engine.events import Event, NodeStarted
from app.engine.run import Run
from app.graph.document import Workflow
from app.graph.errors import InputError, WorkflowError
from app.graph.registry import ports_schema
from app.worker.checked_events import check_event
from app.worker.event_json import problem_data
from app.worker.last_words import LastWords
from app.worker.outbox import OngoingRun, Outbox, Send
from app.worker.settings import Job, WorkerSettings

log = logging.getLogger(__name__)


class Worker:
    """One engine behind messages.

    `handle` takes messages on the thread that reads them, so that a cancel or a live change is heard while `work`
    runs a job on another.
    """

    def __init__(self, engine: Engine, settings: WorkerSettings, send: Send) -> None:
        self._engine = engine
        self._output = Path(settings.output).absolute()
        self._temp = Path(settings.temp).absolute()
        self._last_words = LastWords(settings.note) if settings.note else None
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._current: Run | None = None
        self._cancelled: set[str] = set()
        self._lock = threading.Lock()
        self.devices: list[dict[str, Any]] = []
        self.outbox = Outbox(send, self.stats)

    def handle(self, message: dict[str, Any]) -> None:
        """Take one message of the server."""
        kind = message["type"]
        if kind == "run":
            self._jobs.put(Job.parse(message["job"]))
        elif kind == "cancel":
            self._cancel(message["run"])
        elif kind == "free":
            self._free(unload_models=message["unload_models"], free_memory=message["free_memory"])
        elif kind in ("steer", "ports"):
            answer = {"steer": self._steer, "ports": self._ports}[kind]
            self.outbox.put({"type": "reply", "id": message["id"], **_answered(answer, message)})
        else:
            log.error("unknown message %s", kind)

    def work(self) -> None:
        """Run job after job: this is the thread's body. Whatever becomes of one, its end is told."""
        while True:
            job = self._jobs.get()
            try:
                self._run(job)
            except BaseException as error:
                log.exception("run %s failed outside of its nodes", job.id)
                self.outbox.put(_refused(job, _internal(error)))
            finally:
                with self._lock:
                    self._current = None
                    self._cancelled.discard(job.id)

    def stats(self) -> dict[str, Any]:
        """Return counters for metrics, and the devices that are used, once they are known."""
        engine = self._engine
        return {
            "devices": self.devices,
            "sessions": len(engine.sessions.report()),
            "session_loads": engine.sessions.loads,
            "session_hits": engine.sessions.hits,
            "session_evictions": engine.sessions.evictions,
            "session_bytes": engine.sessions.loaded_bytes,
            "cache_bytes": engine.cache.used_bytes,
            "cache_entries": len(engine.cache),
            "cache_hits": engine.cache.hits,
        }

    def _run(self, job: Job) -> None:
        root = self._output if job.folder == "output" else self._temp
        output = root / job.subfolder if job.subfolder else root
        kept = self._temp / (job.subfolder if job.folder == "temp" else job.id)
        roots = {"output": self._output, "temp": self._temp}
        ongoing = OngoingRun(job, roots, kept)
        engine = replace(self._engine, folders=replace(self._engine.folders, output=output))

        def emit(event: Event) -> None:
            check_event(event, roots)
            if isinstance(event, NodeStarted):
                self._note(job.id, event.node)
            self.outbox.put_event(ongoing, event)

        self._note(job.id)

        try:
            run = engine.start(Workflow.parse(job.document), emit, job.targets, job.id)
        except WorkflowError as error:
            self.outbox.put(_refused(job, error))
            return
        ongoing.run = run
        with self._lock:
            self._current = run
            if job.id in self._cancelled:
                run.cancel()
        run.execute()
        self.outbox.put_end(ongoing)

    def _note(self, run: str, node: str = "") -> None:
        if self._last_words is not None:
            self._last_words.say(run, node)

    def _cancel(self, run: str) -> None:
        with self._lock:
            self._cancelled.add(run)
            if self._current is not None and self._current.id == run:
                self._current.cancel()

    def _steer(self, message: Mapping[str, Any]) -> bool:
        """Return whether the run goes on and reads all changes at its next step."""
        with self._lock:
            run = self._current
        if run is None or run.id != message["run"]:
            return False
        try:
            return run.steer({(node, name): value for node, name, value in message["changes"]})
        except WorkflowError as error:
            if error.problems[0].code == "run_ended":
                return False
            raise

    def _ports(self, message: Mapping[str, Any]) -> dict[str, Any]:
        node_type = self._engine.registry.get(message["class_type"])
        if node_type is None:
            raise WorkflowError.of(self._engine.registry.unknown(message["class_type"]), "unknown_node_type")
        return ports_schema(node_type.ports_for(message["literals"]))

    def _free(self, *, unload_models: bool, free_memory: bool) -> None:
        if free_memory:
            self._engine.cache.clear()
        if unload_models or free_memory:
            self._engine.sessions.unload_all()


def _answered(answer: Any, message: Mapping[str, Any]) -> dict[str, Any]:
    """Return {"value"}, or {"problems"} when the question could not be answered."""
    try:
        return {"value": answer(message)}
    except WorkflowError as error:
        return {"problems": [problem_data(problem) for problem in error.problems]}
    except InputError as error:
        return {"problems": [problem_data(error.at("", ""))]}
    except Exception as error:
        log.exception("a question of the server could not be answered")
        return {"problems": [problem_data(problem) for problem in _internal(error).problems]}


def _internal(error: BaseException) -> WorkflowError:
    text = f"failed inside Ortloom with {type(error).__name__}: {error}; the log has the details"
    return WorkflowError.of(text, "internal")


def _refused(job: Job, error: WorkflowError) -> dict[str, Any]:
    return {
        "type": "ended",
        "run": job.id,
        "status": "failed",
        "problems": [problem_data(problem) for problem in error.problems],
        "previews": [],
        "seconds": 0.0,
        "seconds_by_node": {},
        "step_seconds_by_loop": {},
        "cached": [],
        "session_loads": 0,
        "session_hits": 0,
        "is_steered": False,
    }
