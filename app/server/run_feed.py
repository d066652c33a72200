"""Runs told to the streams of our own API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.server.active_run import ActiveRun, RunObserver
from app.server.streams import EVERYONE, Streams


class RunFeed(RunObserver):
    """Publishes every event of every run; streams pick theirs by topic."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._queue: dict[str, Any] = {}

    @property
    def queue_event(self) -> dict[str, Any]:
        """The newest event about the queue."""
        return self._queue

    def queue_changed(self, *, running: int, queued: int, paused: bool) -> None:
        """See RunObserver."""
        event = {"type": "queue", "running": running, "queued": queued, "paused": paused}
        if event != self._queue:
            self._queue = event
            self._streams.publish((EVERYONE,), event)

    def run_event(self, run: ActiveRun, event: Mapping[str, Any]) -> None:
        """See RunObserver."""
        self._streams.publish(run.topics, {**event, **_place(run)})

    def run_preview(self, run: ActiveRun, event: Mapping[str, Any], picture: bytes) -> None:
        """See RunObserver."""
        key = (run.live or run.id, event["node"], event["index"])
        self._streams.publish_preview(run.topics, key, {**event, **_place(run)}, picture)

    def run_ended(self, run: ActiveRun, record: Mapping[str, Any]) -> None:
        """See RunObserver."""
        event = {
            "type": record["status"],
            **_place(run),
            "seconds": record["seconds"],
            "outputs": record["outputs"],
            "problems": record["problems"],
            "session_loads": record.get("session_loads", 0),
            "session_hits": record.get("session_hits", 0),
        }
        self._streams.publish(run.topics, event)

    def runs_removed(self, runs: Sequence[str], state: str) -> None:
        """See RunObserver."""
        self._streams.publish((EVERYONE,), {"type": "removed", "runs": list(runs), "state": state})


def _place(run: ActiveRun) -> dict[str, Any]:
    return {"run": run.id, "live_id": run.live, "revision": run.revision} if run.live else {"run": run.id}
