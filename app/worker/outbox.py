"""What a worker says, sent by a thread of its own so that a run never waits for pictures to be encoded or read."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias

from app.engine.events import Event, Preview, Restarted
from app.engine.run import Run
from app.worker.event_json import Roots, event_json, place_of, problem_data
from app.worker.previews import LastPreviews, PreviewBudget
from app.worker.settings import Job

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
Send: TypeAlias = Callable[[dict[str, Any], Sequence[bytes]], None]


@dataclass(slots=True)
class OngoingRun:
    """One run in this worker. roots: folders by the names that clients know. folder: where its previews are kept."""

    job: Job
    roots: Roots
    folder: Path
    run: Run | None = None
    budget: PreviewBudget = field(init=False)
    last: LastPreviews = field(default_factory=LastPreviews)

    def __post_init__(self) -> None:
        self.budget = PreviewBudget(self.job.previews)


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
        entries: list[dict[str, Any]] = []
        blobs: list[bytes] = []
        offset = 0
        newest = _newest_previews(events)
        for place, event in enumerate(events):
            if isinstance(event, Preview):
                index = ongoing.last.add(event)
                data = ongoing.budget.encode(event) if place in newest else None
                if data is not None:
                    entry = {"type": "preview", "node": event.node, "step": event.step, "index": index}
                    entries.append(entry | {"mime": "image/jpeg", "blob": [offset, len(data)]})
                    blobs.append(data)
                    offset += len(data)
                continue
            if isinstance(event, Restarted):
                ongoing.last.clear()
            made = event_json(event, ongoing.roots)
            if made is not None:
                entries.append(made)
        if entries:
            self._send({"type": "events", "run": ongoing.job.id, "events": entries}, blobs)

    def _end(self, ongoing: OngoingRun) -> dict[str, Any]:
        """Keep the last previews of a run that ended well as files; return the message with its record."""
        assert ongoing.run is not None
        run, record = ongoing.run, ongoing.run.record
        previews: list[dict[str, Any]] = []
        if record.status == "done":
            try:
                for node, path in ongoing.last.write(ongoing.folder, run.workflow.to_json()):
                    previews.append({"node": node, "kind": "preview", **place_of(path, ongoing.roots)})
            except OSError as error:  # a preview is not worth losing the run's results
                log.warning("previews of run %s cannot be kept: %s", run.id, error)
        return {
            "type": "ended",
            "run": run.id,
            "status": record.status,
            "problems": [problem_data(problem) for problem in record.problems],
            "previews": previews,
            "seconds": record.seconds,
            "seconds_by_node": record.seconds_by_node,
            "step_seconds_by_loop": record.step_seconds_by_loop,
            "cached": record.cached,
            "session_loads": record.session_loads,
            "session_hits": record.session_hits,
            "is_steered": run.is_steered,
        }


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
