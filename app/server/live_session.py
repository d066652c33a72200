"""One live session: a workflow held open, its newest revision, and what the picture shown was made of."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from app.graph.document import Workflow
from app.graph.errors import WorkflowError
from app.worker.settings import PreviewSettings

SETTLE_MS = 400
MAX_SETTLE_MS = 60_000


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """How a session behaves.

    settle: run a steered revision once more with its last values, so that its result can be made again.
    settle_ms: how long no change must have come before that, and before a result is kept.
    """

    settle: bool = True
    settle_ms: int = SETTLE_MS
    previews: PreviewSettings = field(default_factory=PreviewSettings)

    @classmethod
    def parse(cls, data: dict[str, Any]) -> LiveOptions:
        """Return the options in a request's object; other keys are left alone. Raises WorkflowError."""
        settle = data.get("settle", True)
        if not isinstance(settle, bool):
            raise _bad("settle", settle, "true or false")
        every = _whole(data, "preview_every", 1, 1, 10_000)
        previews = PreviewSettings(every, _whole(data, "preview_px", 512, 0, 16_384))
        return cls(settle, _whole(data, "settle_ms", SETTLE_MS, 0, MAX_SETTLE_MS), previews)


@dataclass(frozen=True, slots=True)
class Shown:
    """The newest result.

    subfolder: where its files lie in the temporary folder. is_settled: a fresh run with the same values gives the same.
    is_kept: it is in the history, and its files are in the output folder too.
    """

    revision: int
    run: str
    subfolder: str
    outputs: tuple[dict[str, Any], ...]
    record: dict[str, Any]
    workflow: Workflow
    started: float
    is_settled: bool
    is_kept: bool = False


@dataclass(slots=True)
class LiveSession:
    """One session. At most one revision runs and at most one, the newest, waits.

    revision: counts changes from 1. running: the revision that the running run shows by now, 0 for none.
    steering: the revision that the worker is asked to steer to just now, 0 for none.
    runs: counts runs, those that settle a revision included. is_superseded: what runs was told to end for a newer one.
    outdated: files of the result before the one shown. first_loads: sessions loaded by the first revision.
    """

    id: str
    client_id: str
    workflow: Workflow
    options: LiveOptions
    name: str = ""
    revision: int = 1
    running: int = 0
    steering: int = 0
    runs: int = 0
    run_id: str = ""
    is_waiting: bool = True
    waiting_since: float = field(default_factory=monotonic)
    is_superseded: bool = False
    is_settling: bool = False
    shown: Shown | None = None
    outdated: Path | None = None
    problems: tuple[dict[str, Any], ...] = ()
    session_loads: int = 0
    session_hits: int = 0
    first_loads: int | None = None
    last_change: float = field(default_factory=monotonic)
    last_seen: float = field(default_factory=monotonic)
    timer: asyncio.TimerHandle | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def topics(self) -> tuple[str, ...]:
        """Whom its events concern."""
        return ("all", f"live:{self.id}", f"client:{self.client_id}")

    @property
    def state(self) -> str:
        """One word for how it stands: waiting, running, settling, failed, steered or settled."""
        if self.running:
            return "settling" if self.is_settling else "running"
        if self.is_waiting:
            return "waiting"
        if self.problems:
            return "failed"
        return "settled" if self.shown is not None and self.shown.is_settled else "steered"

    def wait(self) -> None:
        """Let the newest revision wait for its run."""
        if not self.is_waiting:
            self.is_waiting, self.waiting_since = True, monotonic()

    def stop_timer(self) -> None:
        """Do not settle or keep what is shown: it is about to change."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def count(self, record: dict[str, Any]) -> None:
        """Add a run's session loads and hits."""
        self.session_loads += record.get("session_loads", 0)
        self.session_hits += record.get("session_hits", 0)
        if self.first_loads is None:
            self.first_loads = self.session_loads

    def to_json(self) -> dict[str, Any]:
        """Return the session's state as clients see it."""
        data: dict[str, Any] = {
            "live_id": self.id,
            "revision": self.revision,
            "state": self.state,
            "running_revision": self.running or None,
            "waiting_revision": self.revision if self.is_waiting else None,
            "problems": list(self.problems),
            "session_loads": self.session_loads,
            "session_hits": self.session_hits,
        }
        if self.shown is not None:
            data["shown"] = {
                "revision": self.shown.revision,
                "settled": self.shown.is_settled,
                "kept": self.shown.is_kept,
                "run": self.shown.run,
                "seconds": self.shown.record.get("seconds", 0.0),
                "outputs": list(self.shown.outputs),
            }
        if self.first_loads is not None and self.session_loads > self.first_loads:
            again = self.session_loads - self.first_loads
            data["note"] = (
                f"{again} models were loaded after the first revision: another model was chosen, a file changed, "
                "sessions made room for others, or a new worker started"
            )
        return data


def _whole(data: dict[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = data.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _bad(name, value, f"a whole number from {low} to {high}")
    return value


def _bad(name: str, value: Any, accepted: str) -> WorkflowError:
    return WorkflowError.of(f"found {name} {str(value)[:60]}, accepted {accepted}; set one", "bad_option", input=name)
