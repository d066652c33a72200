"""Previews of runs: files of the newest runs only, so that a server that runs for months has room."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.server.active_run import ActiveRun
from app.server.kept_files import drop

KEEP_RUNS = 500


class TempFiles:
    """Deletes the previews of older runs. folder: holds a folder for each run that had any."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: deque[str] = deque()

    def queue_changed(self, *, running: int, queued: int, paused: bool) -> None:
        """See RunObserver."""

    def run_started(self, run: ActiveRun) -> None:
        """See RunObserver."""

    def run_event(self, run: ActiveRun, event: Mapping[str, Any]) -> None:
        """See RunObserver."""

    def run_preview(self, run: ActiveRun, event: Mapping[str, Any], picture: bytes) -> None:
        """See RunObserver."""

    def runs_removed(self, runs: Sequence[str], state: str) -> None:
        """See RunObserver."""

    def run_ended(self, run: ActiveRun, record: Mapping[str, Any]) -> None:
        """See RunObserver."""
        if run.live or not any(output.get("folder") == "temp" for output in record["outputs"]):
            return
        self._runs.append(run.id)
        while len(self._runs) > KEEP_RUNS:
            drop(self._folder / self._runs.popleft())
