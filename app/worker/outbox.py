"""What a worker says, sent by a thread of its own so that a run never waits for pictures to be encoded or read."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias

from app.engine.events import Event, Preview, Restarted
from app.engine.run import Run
from app.worker.event_json import Roots, event_json, preview_output, problem_data
from app.worker.previews import KeptPreviews, PreviewBudget
from app.worker.settings import Job

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
Send: TypeAlias = Callable[[dict[str, Any], Sequence[bytes]], None]


class OngoingRun:
    """One run in this worker. roots: folders by the names that clients know. folder: where its previews are kept."""

    def __init__(self, job: Job, roots: Roots, folder: Path) -> None:
        self.job = job
        self.roots = roots
        self.run: Run | None = None
        self.budget = PreviewBudget(job.previews)
        self.kept = KeptPreviews(folder)

    @property
    def started_run(self) -> Run:
        """The engine's run. Raises RuntimeError before it is made."""
        if self.run is None:
            raise RuntimeError(f"run {self.job.id} has not started")
        return self.run

    def document(self) -> dict[str, Any]:
        """Return the workflow as it runs now."""
        return self.started_run.workflow.to_json()


class Outbox:
    """Sends in order what is put in; `put` never waits. stats: gives what a heartbeat carries."""

    def __init__(self, send: Send, stats: Callable[[], dict[str, Any]]) -> None:
        self._send = send
        self._stats = stats
        self._items: deque[tuple[OngoingRun, Event] | dict[str, Any] | OngoingRun] = deque()
        self._wake = threading.Event()

    def put_event(self, ongoing: OngoingRun, event: Event) -> None:
        """Send an event of a run."""
        self._items.append((ongoing, event))
        self._wake.set()

    def put(self, message: dict[str, Any]) -> None:
        """Send a message."""
        self._items.append(message)
        self._wake.set()

    def put_end(self, ongoing: OngoingRun) -> None:
        """Send that a run has ended, with its record."""
        self._items.append(ongoing)
        self._wake.set()

    def run(self) -> None:
        """Send until the process ends: this is the thread's body."""
        beat_due = monotonic() + HEARTBEAT_S
        while True:
            self._wake.wait(max(0.0, beat_due - monotonic()))
            self._wake.clear()
            self._drain()
            if monotonic() >= beat_due:
                self._send({"type": "heartbeat", **self._stats()}, ())
                beat_due = monotonic() + HEARTBEAT_S

    def _drain(self) -> None:
        """Send all that waits, the events of a run that stand together in one frame."""
        events: list[Event] = []
        of_run: OngoingRun | None = None
        while self._items:
            item = self._items.popleft()
            if isinstance(item, tuple):
                if of_run is not item[0]:
                    self._send_events(of_run, events)
                    of_run, events = item[0], []
                events.append(item[1])
                continue
            self._send_events(of_run, events)
            of_run, events = None, []
            self._send(*((item, ()) if isinstance(item, dict) else (self._end(item), ())))
        self._send_events(of_run, events)

    def _send_events(self, ongoing: OngoingRun | None, events: Sequence[Event]) -> None:
        if ongoing is None or not events:
            return
        frame = _EventFrame(ongoing)
        newest = _newest_previews(events)
        for place, event in enumerate(events):
            try:
                if isinstance(event, Preview):
                    frame.add_preview(event, is_newest=place in newest)
                else:
                    frame.add(event)
            except Exception:  # what cannot be told must not keep the rest, or the run's end, from being told
                log.exception("an event of run %s cannot be sent", ongoing.job.id)
        if frame.entries:
            self._send({"type": "events", "run": ongoing.job.id, "events": frame.entries}, frame.blobs)

    def _end(self, ongoing: OngoingRun) -> dict[str, Any]:
        """Keep what loops showed last as files; return the message with the run's record."""
        run, record = ongoing.started_run, ongoing.started_run.record
        previews = ongoing.kept.finish(ongoing.document()) if record.status == "done" else []
        return {
            "type": "ended",
            "run": run.id,
            "status": record.status,
            "problems": [problem_data(problem) for problem in record.problems],
            "previews": [preview_output(node, path, ongoing.roots) for node, path in previews],
            "seconds": record.seconds,
            "seconds_by_node": record.seconds_by_node,
            "step_seconds_by_loop": record.step_seconds_by_loop,
            "cached": record.cached,
            "session_loads": record.session_loads,
            "session_hits": record.session_hits,
            "is_steered": run.is_steered,
        }


class _EventFrame:
    """Events of one run, made ready to be sent together."""

    def __init__(self, ongoing: OngoingRun) -> None:
        self.entries: list[dict[str, Any]] = []
        self.blobs: list[bytes] = []
        self._ongoing = ongoing
        self._offset = 0

    def add(self, event: Event) -> None:
        """Add an event that is no picture."""
        if isinstance(event, Restarted):
            self._ongoing.kept.restart()
        entry = event_json(event, self._ongoing.roots)
        if entry is not None:
            self.entries.append(entry)

    def add_preview(self, event: Preview, *, is_newest: bool) -> None:
        """Keep a picture; add it if it is worth sending."""
        ongoing = self._ongoing
        index, path = ongoing.kept.add(event, ongoing.document())
        data = ongoing.budget.encode(event) if is_newest else None
        if data is not None:
            entry = {"type": "preview", "node": event.node, "step": event.step, "index": index}
            self.entries.append(entry | {"mime": "image/jpeg", "blob": [self._offset, len(data)]})
            self.blobs.append(data)
            self._offset += len(data)
        if path is not None:
            self.entries.append({"type": "output", "output": preview_output(event.node, path, ongoing.roots)})


def _newest_previews(events: Sequence[Event]) -> set[int]:
    """Return the places of the previews worth sending: of each node those of its newest step."""
    newest_step: dict[str, int | None] = {}
    for event in events:
        if isinstance(event, Preview):
            newest_step[event.node] = event.step
    return {
        place
        for place, event in enumerate(events)
        if isinstance(event, Preview) and event.step == newest_step[event.node]
    }
