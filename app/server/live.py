"""Live sessions: change a value, see the result; latest wins, steered where that can be, settled when it is quiet."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from time import monotonic
from typing import Any

from app.graph.changes import placed
from app.graph.document import Workflow
from app.graph.errors import InputError, WorkflowError
from app.server.active_run import ActiveRun, RunObserver
from app.server.errors import ApiError
from app.server.judgement import check
from app.server.kept_files import drop, keep
from app.server.live_session import LiveOptions, LiveSession, Shown
from app.server.node_library import NodeLibrary
from app.server.run_queue import RunQueue, result_of
from app.server.settings import ServerSettings
from app.server.storage.database import StorageError
from app.server.storage.runs import RunStore
from app.server.storage.schema import NewRun
from app.server.streams import Streams
from app.worker.settings import Job

log = logging.getLogger(__name__)

IDLE_S = 60.0
"""How long a session outlives its client."""
LOOK_S = 5.0
MAX_SESSIONS = 64


class LiveSessions(RunObserver):
    """All sessions. Their revisions go before queued runs; of several that wait, the longest waiting goes first."""

    def __init__(
        self, settings: ServerSettings, queue: RunQueue, library: NodeLibrary, store: RunStore, streams: Streams
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._library = library
        self._store = store
        self._streams = streams
        self._sessions: dict[str, LiveSession] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        queue.live_jobs = self._next_job
        queue.observers.insert(0, self)  # before those who tell clients: it knows which revision a step shows

    async def watch(self) -> None:
        """End sessions whose clients are gone; runs until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            now = monotonic()
            for session in list(self._sessions.values()):
                if self._streams.is_connected(session.client_id):
                    session.last_seen = now
                elif now - session.last_seen > IDLE_S:
                    self._end(session)

    async def open(self, workflow: Workflow, options: LiveOptions, client_id: str = "", name: str = "") -> LiveSession:
        """Open a session and let its first revision run. Raises WorkflowError when the workflow cannot run."""
        await self._check(workflow)
        if len(self._sessions) >= MAX_SESSIONS:
            message = f"found {MAX_SESSIONS} open live sessions, accepted no more; end one with DELETE /api/live/ID"
            raise ApiError(429, message, "too_many")
        session = LiveSession(uuid.uuid4().hex[:16], client_id or uuid.uuid4().hex, workflow, options, name)
        self._sessions[session.id] = session
        self._changed(session)
        return session

    def get(self, live_id: str) -> LiveSession:
        """Return a session. Raises ApiError 404."""
        session = self._sessions.get(live_id)
        if session is None:
            message = (
                f"found no live session {live_id[:60]!r}: it was ended, or its client was gone for {IDLE_S:.0f} s; "
                "open one with POST /api/live"
            )
            raise ApiError(404, message, "unknown_live")
        session.last_seen = monotonic()
        return session

    def all(self) -> list[LiveSession]:
        """Return every open session."""
        return list(self._sessions.values())

    async def set(self, session: LiveSession, changes: Mapping[str, Any]) -> int:
        """Change inputs, NODE.INPUT -> value; return the new revision. Raises WorkflowError and changes nothing."""
        async with session.lock:
            by_place = placed(session.workflow, changes)
            workflow = session.workflow.with_inputs(by_place)
            await self._check(workflow)
            self.get(session.id)  # it may have been ended meanwhile
            revision = self._advance(session, workflow)
            if session.running and not session.is_superseded and not await self._steer(session, by_place, revision):
                self._supersede(session)
            elif not session.running:
                session.wait()
            self._changed(session)
            return revision

    async def replace(self, session: LiveSession, workflow: Workflow) -> int:
        """Take another document; return the new revision. Raises WorkflowError and changes nothing."""
        async with session.lock:
            await self._check(workflow)
            self.get(session.id)
            revision = self._advance(session, workflow)
            if session.running:
                self._supersede(session)
            session.wait()
            self._changed(session)
            return revision

    def end(self, session: LiveSession) -> None:
        """End a session; what it has not kept is lost."""
        self._end(session)

    # What the queue tells of live runs.

    def run_started(self, run: ActiveRun) -> None:
        """See RunObserver."""
        if run.live and (session := self._sessions.get(run.live)) is not None:
            self._publish(session)

    def run_event(self, run: ActiveRun, event: Mapping[str, Any]) -> None:
        """See RunObserver."""
        session = self._sessions.get(run.live) if event["type"] == "steered" else None
        if session is not None and session.steering:  # the worker steers before it has answered that it does
            run.revision = session.steering

    def run_ended(self, run: ActiveRun, record: Mapping[str, Any]) -> None:
        """See RunObserver."""
        if not run.live:
            return
        folder = self._settings.temp / run.job.subfolder
        session = self._sessions.get(run.live)
        if session is None:
            drop(folder)
            return
        result = dict(record)
        session.count(result)
        revision, is_superseded = session.running, session.is_superseded
        session.running, session.is_superseded, session.is_settling = 0, False, False
        if is_superseded or record["status"] == "cancelled":
            drop(folder)
        elif record["status"] == "failed":
            session.problems = tuple(record["problems"])
        else:
            self._show(session, run, revision, result)
        self._publish(session)

    def _next_job(self) -> ActiveRun | None:
        waiting = [session for session in self._sessions.values() if session.is_waiting and not session.running]
        if not waiting:
            return None
        session = min(waiting, key=lambda session: session.waiting_since)
        session.is_waiting = False
        session.runs += 1
        session.running = session.revision
        session.run_id = f"{session.id}-{session.runs}"
        subfolder = f"live/{session.id}/{session.runs}"
        document = session.workflow.to_json()
        job = Job(session.run_id, document, None, "temp", subfolder, session.options.previews)
        class_types = {node.id: node.class_type for node in session.workflow.nodes.values()}
        return ActiveRun(
            job, session.client_id, session.topics, live=session.id, revision=session.revision, class_types=class_types
        )

    def _advance(self, session: LiveSession, workflow: Workflow) -> int:
        session.workflow = workflow
        session.revision += 1
        session.last_change = monotonic()
        session.problems = ()
        session.stop_timer()
        return session.revision

    async def _steer(self, session: LiveSession, changes: Mapping[tuple[str, str], Any], revision: int) -> bool:
        """Return whether the running run goes on with the changes."""
        run_id, session.steering = session.run_id, revision
        try:
            steered = await self._queue.home.steer(run_id, [(*place, value) for place, value in changes.items()])
        except WorkflowError:  # the worker died meanwhile, or it finds fault: the run that follows says so
            steered = False
        finally:
            session.steering = 0
        if steered and session.running and session.run_id == run_id:
            session.running = revision
            active = self._queue.active
            if active is not None and active.id == run_id:
                active.revision = revision
            return True
        return False

    def _supersede(self, session: LiveSession) -> None:
        session.wait()
        if session.running and not session.is_superseded:
            session.is_superseded = True
            self._queue.cancel_live(session.run_id)

    def _show(self, session: LiveSession, run: ActiveRun, revision: int, record: dict[str, Any]) -> None:
        before = session.shown
        # A change that came too late for the last step made the worker run the loop again, by itself.
        is_settled = not record.get("is_steered", False)
        outputs = tuple(record["outputs"])
        session.shown = Shown(
            revision, run.id, run.job.subfolder, outputs, record, session.workflow, run.started, is_settled
        )
        if before is not None:  # its files stay for one more revision: a client may be about to fetch them
            drop(session.outdated)
            session.outdated = self._settings.temp / before.subfolder
        if session.is_waiting or not (is_settled or session.options.settle):
            return
        quiet = session.options.settle_ms / 1000 - (monotonic() - session.last_change)
        session.timer = asyncio.get_running_loop().call_later(max(0.0, quiet), self._is_quiet, session)

    def _is_quiet(self, session: LiveSession) -> None:
        """No change has come for a while: settle what is shown, or keep it."""
        session.timer = None
        shown = session.shown
        if shown is None or session.is_waiting or session.running or shown.revision != session.revision:
            return
        if shown.is_settled:
            task = asyncio.create_task(self._keep(session, shown))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            session.is_settling = True
            session.wait()
            self._changed(session)

    async def _keep(self, session: LiveSession, shown: Shown) -> None:
        """Move a settled result to the output folder and put it into the history."""
        settings = self._settings
        try:
            outputs = await asyncio.to_thread(keep, shown.outputs, shown.subfolder, settings.temp, settings.output)
            new = NewRun(
                str(uuid.uuid4()),
                shown.workflow.to_json(),
                source="live",
                name=session.name,
                client_id=session.client_id,
                created=shown.started,
            )
            result = result_of({**shown.record, "outputs": outputs})
            await self._store.add_ended(new, replace(result, ended=time.time()))
        except (OSError, InputError, StorageError) as error:
            log.error("the result of live session %s cannot be kept: %s", session.id, error)
            return
        if session.shown is shown:
            session.shown = replace(shown, outputs=tuple(outputs), run=new.id, is_kept=True)
            self._publish(session)

    async def _check(self, workflow: Workflow) -> None:
        await check(self._library, workflow)

    def _changed(self, session: LiveSession) -> None:
        self._publish(session)
        self._queue.wake()

    def _publish(self, session: LiveSession) -> None:
        self._streams.publish(session.topics, {"type": "live.state", **session.to_json()})

    def _end(self, session: LiveSession) -> None:
        session.stop_timer()
        session.is_waiting = False
        self._sessions.pop(session.id, None)
        if session.running:
            self._queue.cancel_live(session.run_id)
        drop(self._settings.temp / "live" / session.id)
        self._streams.publish(session.topics, {"type": "live.closed", "live_id": session.id})
