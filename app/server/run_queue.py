"""The queue: gives the worker one run after another, and tells everyone what becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from app.graph.errors import Problem
from app.server.active_run import ActiveRun, RunObserver
from app.server.comfy.run_messages import status_messages
from app.server.node_library import NodeLibrary
from app.server.storage.database import StorageError
from app.server.storage.runs import RunStore
from app.server.storage.schema import NewRun, RunResult, StoredOutput, StoredRun
from app.worker.event_json import problem_data
from app.worker.home import WorkerHome
from app.worker.settings import Job

log = logging.getLogger(__name__)

MAX_STARTS = 2
"""How often a run is given to a worker that dies before it has said anything of it."""
SAVE_AGAIN_S = 2.0


class RunQueue:
    """Runs wait in the database and are given to the worker in order; live revisions go before them.

    live_jobs: gives the next live revision that waits, or None.
    """

    def __init__(self, store: RunStore, home: WorkerHome, library: NodeLibrary, *, paused: bool = False) -> None:
        self.store = store
        self.home = home
        self.active: ActiveRun | None = None
        self.is_paused = paused
        self.stats: Mapping[str, Any] = {}
        self.devices: list[dict[str, Any]] = []
        self.worker_restarts = 0
        self.observers: list[RunObserver] = []
        self.live_jobs: Callable[[], ActiveRun | None] = lambda: None
        self._library = library
        self._queued = 0
        self._is_ready = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._savings: set[asyncio.Task[None]] = set()

    async def recover(self) -> None:
        """Take over what an earlier server left, before anyone asks."""
        recovered = await self.store.recover()
        if recovered:
            log.info("%d runs that had been running wait again", len(recovered))
        _, self._queued = await self.store.queue_counts()
        self._tell_queue()

    async def start(self) -> None:
        """Start the worker, and give it what waits."""
        await self.home.start(self)
        self._task = asyncio.create_task(self._serve())

    async def close(self) -> None:
        """End the worker; what it had in hand waits for the next start."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self.home.close()
        if self.active is not None and not self.active.live:
            await self.store.put_back(self.active.id)
        for saving in tuple(self._savings):
            saving.cancel()

    @property
    def counts(self) -> tuple[int, int]:
        """How many runs are running and queued; live revisions are not counted."""
        return int(self.active is not None and not self.active.live), self._queued

    async def submit(self, new: NewRun) -> StoredRun:
        """Queue a run; it is in the database when this returns. Raises StorageError."""
        stored = await self.store.add(new)
        self._queued += 1
        self._tell_queue()
        self._wake.set()
        return stored

    def wake(self) -> None:
        """Look again for something to run."""
        self._wake.set()

    def pause(self, *, paused: bool) -> None:
        """Start no more queued runs, or go on."""
        self.is_paused = paused
        self._tell_queue()
        self._wake.set()

    def interrupt(self, run_id: str | None = None) -> bool:
        """End the queued run that is in hand, if it has that id; return whether there was one."""
        active = self.active
        if active is None or active.live or active.ended.done() or run_id not in (None, active.id):
            return False
        self._cancel(active)
        return True

    def cancel_live(self, run_id: str) -> None:
        """End a live revision that is in hand."""
        if self.active is not None and self.active.id == run_id and not self.active.ended.done():
            self._cancel(self.active)

    async def cancel(self, run_id: str) -> bool:
        """End a run wherever it stands: in hand, or waiting; return whether there was something to end."""
        if self.interrupt(run_id):
            return True
        if not await self.store.finish(run_id, RunResult("cancelled")):
            return False
        if not self.interrupt(run_id):  # else its turn came meanwhile
            self._removed([run_id], "cancelled")
        return True

    async def delete_queued(self, run_ids: Sequence[str]) -> int:
        """Take waiting runs out of the queue without a trace; return how many there were."""
        deleted: list[str] = []
        try:
            for run_id in run_ids:
                if await self.store.delete_queued([run_id]):
                    deleted.append(run_id)
        finally:
            self._removed(deleted, "deleted")
        return len(deleted)

    async def clear(self) -> list[str]:
        """Take all waiting runs out of the queue; return their ids."""
        ids = await self.store.clear_queued()
        self._removed(ids, "deleted")
        return ids

    # What the worker's home tells.

    def worker_ready(self, node_types: Sequence[Mapping[str, Any]], extensions: Sequence[Mapping[str, Any]]) -> None:
        """See WorkerListener."""
        self._library.worker_ready(node_types, extensions)
        self._is_ready = True
        self._wake.set()

    def worker_events(self, run: str, events: Sequence[dict[str, Any]], blob: bytes) -> None:
        """See WorkerListener."""
        active = self.active
        if active is None or active.id != run:
            return
        for event in events:
            if event["type"] == "preview":
                offset, length = event.pop("blob")
                for observer in self.observers:
                    observer.run_preview(active, event, blob[offset : offset + length])
                continue
            active.take(event)
            for observer in self.observers:
                observer.run_event(active, event)

    def worker_ended(self, record: dict[str, Any]) -> None:
        """See WorkerListener."""
        if self.active is not None and self.active.id == record["run"] and not self.active.ended.done():
            self.active.ended.set_result(record)

    def worker_died(self, sentence: str, run: str, node: str) -> None:
        """See WorkerListener."""
        self._is_ready = False
        self.worker_restarts += 1
        active = self.active
        if active is None or not active.is_given or active.ended.done():
            return
        if run == active.id:
            active.has_begun = True
            active.current = node or active.current
        problems = [] if active.is_cancelled else [_died(active, sentence)]
        active.ended.set_result({"status": "failed" if problems else "cancelled", "problems": problems})

    def worker_stats(self, stats: Mapping[str, Any]) -> None:
        """See WorkerListener."""
        self.stats = stats
        self.devices[:] = stats["devices"]

    async def _serve(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._is_ready:
                try:
                    active = await self._next()
                except StorageError as error:
                    log.error("the next run cannot be read: %s", error)
                    asyncio.get_running_loop().call_later(SAVE_AGAIN_S, self._wake.set)
                    break
                if active is None:
                    break
                try:
                    await self._run(active)
                except Exception:
                    log.exception("run %s failed inside the server; the queue goes on", active.id)
                    self.active = None

    async def _next(self) -> ActiveRun | None:
        live = self.live_jobs()
        if live is not None:
            return live
        while not self.is_paused:
            stored = await self.store.next_queued()
            if stored is None:
                return None
            if await self.store.mark_running(stored.id):
                self._queued = max(0, self._queued - 1)
                return _active_run(stored)
        return None

    async def _run(self, active: ActiveRun) -> None:
        """Run one to its end, on another worker if the first was dead already."""
        self.active = active
        self._tell_queue()
        for observer in self.observers:
            observer.run_started(active)
        record = await self._given(active)
        record.setdefault("seconds", 0.0)
        record["outputs"] = [*active.outputs, *record.get("previews", ())]
        if not active.live:
            await self._save(active, record)
        self.active = None
        for observer in self.observers:
            observer.run_ended(active, record)
        self._tell_queue()
        self._wake.set()

    async def _given(self, active: ActiveRun) -> dict[str, Any]:
        """Give a run to the worker that is ready, to the next one if that was dead already; return its record."""
        for attempt in range(MAX_STARTS):
            while not self._is_ready:
                await self._wake.wait()
                self._wake.clear()
            if active.is_cancelled:
                break
            active.is_given = True
            self.home.submit(active.job)
            record = await active.ended
            if active.has_begun or record.get("run") or active.is_cancelled or attempt + 1 == MAX_STARTS:
                return record
            active.is_given, active.ended = False, asyncio.get_running_loop().create_future()
        return {"status": "cancelled", "problems": []}

    async def _save(self, active: ActiveRun, record: Mapping[str, Any]) -> None:
        """Write how a run ended; when that fails, say so and try again while the queue goes on."""
        result = replace(result_of(record), messages=status_messages(active, record))
        try:
            await self.store.finish(active.id, result)
        except StorageError as error:
            log.error("run %s cannot be saved yet: %s", active.id, error)
            saving = asyncio.create_task(self._save_again(active.id, result))
            self._savings.add(saving)
            saving.add_done_callback(self._savings.discard)

    async def _save_again(self, run_id: str, result: RunResult) -> None:
        while True:
            await asyncio.sleep(SAVE_AGAIN_S)
            try:
                await self.store.finish(run_id, result)
            except StorageError as error:
                log.error("run %s cannot be saved yet: %s", run_id, error)
            else:
                return

    def _cancel(self, active: ActiveRun) -> None:
        active.is_cancelled = True
        self.home.cancel(active.id)

    def _removed(self, runs: Sequence[str], state: Literal["cancelled", "deleted"]) -> None:
        if runs:
            self._queued = max(0, self._queued - len(runs))
            for observer in self.observers:
                observer.runs_removed(runs, state)
            self._tell_queue()

    def _tell_queue(self) -> None:
        running, queued = self.counts
        for observer in self.observers:
            observer.queue_changed(running=running, queued=queued, paused=self.is_paused)


def _active_run(stored: StoredRun) -> ActiveRun:
    document = stored.document
    topics = ("all", f"run:{stored.id}", *([f"client:{stored.client_id}"] if stored.client_id else []))
    return ActiveRun(
        Job(stored.id, document, stored.targets),
        stored.client_id,
        topics,
        number=stored.number,
        class_types={node: entry["class_type"] for node, entry in document["nodes"].items()},
    )


def _died(active: ActiveRun, sentence: str) -> dict[str, str]:
    node = active.current or ""
    meta = active.job.document["nodes"].get(node, {}).get("_meta")
    title = meta.get("title") if isinstance(meta, dict) else ""
    return problem_data(Problem(sentence, "worker_died", node, title if isinstance(title, str) else ""))


def result_of(record: Mapping[str, Any]) -> RunResult:
    """Return what the history keeps of a run."""
    return RunResult(
        state=record["status"],
        problems=tuple(Problem(**problem) for problem in record["problems"]),
        outputs=tuple(StoredOutput(**output) for output in record["outputs"]),
        seconds=record["seconds"],
        seconds_by_node=record.get("seconds_by_node", {}),
        step_seconds_by_loop=record.get("step_seconds_by_loop", {}),
        cached=record.get("cached", ()),
        session_loads=record.get("session_loads", 0),
        session_hits=record.get("session_hits", 0),
    )
