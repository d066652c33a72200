"""Previews of runs: files of the newest runs only, so that a server that runs for months has room."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.server.active_run import ActiveRun, RunObserver
from app.server.kept_files import drop

KEEP_RUNS = 500


class TempFiles(RunObserver):
    """Deletes the previews of older runs. folder: holds a folder for each run that had any."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: deque[str] = deque()

    def run_ended(self, run: ActiveRun, record: Mapping[str, Any]) -> None:
        """See RunObserver."""
        if run.live or not any(output.get("folder") == "temp" for output in record["outputs"]):
            return
        self._runs.append(run.id)
        while len(self._runs) > KEEP_RUNS:
            drop(self._folder / self._runs.popleft())
