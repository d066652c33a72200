"""Waiting for the ends of runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from app.server.active_run import ActiveRun, RunObserver


class RunEnds(RunObserver):
    """Lets requests wait for the ends of runs."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    async def wait(self, run_id: str, seconds: float) -> bool:
        """Return whether the run ended in time."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, []).append(future)
        try:
            await asyncio.wait_for(future, seconds)
        except TimeoutError:
            return False
        finally:
            waiting = self._waiting.get(run_id, [])
            if future in waiting:
                waiting.remove(future)
            if not waiting:
                self._waiting.pop(run_id, None)
        return True

    def run_ended(self, run: ActiveRun, record: Mapping[str, Any]) -> None:
        """See RunObserver."""
        self._release(run.id)

    def runs_removed(self, runs: Sequence[str], state: str) -> None:
        """See RunObserver."""
        for run in runs:
            self._release(run)

    def _release(self, run: str) -> None:
        for future in self._waiting.pop(run, []):
            if not future.done():
                future.set_result(None)
