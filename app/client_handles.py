"""Runs as the Python client holds them."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from app.client_http import ClientError, Http, problem_of
from app.client_stream import Event, Preview
from app.graph.errors import Problem

ENDS = frozenset({"done", "failed", "cancelled"})
"""Types of a run's last event, and the states that it then has."""
CHECK_S = 15.0
"""How long a run that is waited for may be silent before it is asked how it stands."""
MAX_PREVIEWS = 16

_TOLD: tuple[str, ...] = ("run", "state", "outputs", "progress")


@dataclass(frozen=True, slots=True)
class RunResult:
    """What came of a run.

    state: done, failed or cancelled. outputs: {node, type, folder and path, or value, step?} each; `Client.fetch` gets
    the file of one. seconds: wall time. All else as `ortloom run --json` prints it; empty if the history has forgotten
    the run by now.
    """

    run: str
    state: str
    outputs: list[dict[str, Any]] = field(default_factory=list)
    problems: tuple[Problem, ...] = ()
    seconds: float = 0.0
    seconds_by_node: dict[str, float] = field(default_factory=dict)
    step_seconds_by_loop: dict[str, list[float]] = field(default_factory=dict)
    cached: list[str] = field(default_factory=list)
    session_loads: int = 0
    session_hits: int = 0


class Handle(ABC):
    """Something on the server that events tell of. id: the server's name for it."""

    def __init__(self, http: Http, id: str) -> None:
        self.id = id
        self._http = http
        self._unread: deque[Event] = deque()
        self._error: ClientError | None = None
        self._changed = asyncio.Event()
        self.is_ended = False

    @abstractmethod
    def take(self, event: Event) -> None:
        """Receive an event; called by the client."""

    @abstractmethod
    async def recover(self) -> None:
        """Learn what holds now, as events were missed; called by the client. Raises ClientError if that fails."""

    def end(self, error: ClientError | None = None) -> None:
        """Let everyone who waits know that nothing more comes; called by the client."""
        if not self.is_ended:
            self.is_ended, self._error = True, error
            self._tell()

    def _put(self, event: Event) -> None:
        self._unread.append(event)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self, seconds: float | None) -> bool:
        """Return whether something has come in that time."""
        changed = self._changed
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            return False
        return True

    async def _idle(self) -> None:
        """Wait for a change."""
        await self._change(None)

    async def _read(self) -> AsyncIterator[Any]:
        while True:
            while self._unread:
                yield self._unread.popleft()
            if self._error is not None:
                raise self._error
            if self.is_ended:
                return
            await self._idle()


class RunHandle(Handle):
    """A run on the server."""

    def __init__(self, http: Http, id: str) -> None:
        super().__init__(http, id)
        self._last: dict[str, Any] = {}
        self._result: RunResult | None = None

    async def events(self) -> AsyncIterator[Event]:
        """Yield what happens from the beginning on, each event once, the last being done, failed or cancelled.

        Events are dicts with `type` (started, node_started, step_finished, output, ...), and Previews, of which the
        newest 16 wait to be read. After a break during which the server forgot what it had sent, an event of type
        `missed` says what holds now: state, outputs and, of a run in hand, progress. Raises ClientError when the
        connection is lost for good.
        """
        async for event in self._read():
            yield event

    async def result(self) -> RunResult:
        """Wait for the end and return what came of it; a failed run's problems are in it. Raises ClientError."""
        while not self.is_ended:
            await self._idle()
        if self._error is not None:
            raise self._error
        if self._result is None:
            self._result = await self._read_result()
        return self._result

    async def cancel(self) -> bool:
        """End the run; return whether it had not ended yet. Raises ClientError."""
        answer = await self._http.json("POST", f"/api/runs/{self.id}/cancel", {})
        await self._refresh()  # a run that only waited ends without an event
        return bool(answer["cancelled"])

    def take(self, event: Event) -> None:
        """See Handle."""
        if self.is_ended:
            return
        if isinstance(event, Preview):
            self._make_room()
            self._put(event)
            return
        self._put(event)
        if event["type"] in ENDS:
            self._last = event
            self.end()

    async def recover(self) -> None:
        """See Handle."""
        run = await self._refresh()
        if run is not None and not self.is_ended:
            told = {name: run[name] for name in _TOLD if name in run}
            self.take({"type": "missed"} | told)

    async def _refresh(self) -> dict[str, Any] | None:
        """Return the run as it stands, None when the server does not know it; take its end, if it has ended."""
        try:
            run: dict[str, Any] = await self._http.json("GET", f"/api/runs/{self.id}")
        except ClientError as error:
            if error.status != 404:
                raise
            self.end(error)
            return None
        if run["state"] in ENDS:
            names = ("run", "seconds", "outputs", "problems", "session_loads", "session_hits")
            self.take({"type": run["state"], **{name: run[name] for name in names}})
        return run

    async def _idle(self) -> None:
        # Somebody else may take a waiting run out of the queue, which no event of the run tells.
        if not await self._change(CHECK_S) and not self.is_ended:
            try:
                await self._refresh()
            except ClientError as error:
                if not error.may_pass:  # else the event stream finds out whether the server stays away
                    self.end(error)

    async def _read_result(self) -> RunResult:
        last, whole = self._last, {}
        with contextlib.suppress(ClientError):  # the last event tells all that matters
            whole = await self._http.json("GET", f"/api/runs/{self.id}")
        return RunResult(
            self.id,
            last["type"],
            last["outputs"],
            tuple(map(problem_of, last["problems"])),
            last["seconds"],
            whole.get("seconds_by_node", {}),
            whole.get("step_seconds_by_loop", {}),
            whole.get("cached", []),
            last["session_loads"],
            last["session_hits"],
        )

    def _make_room(self) -> None:
        waiting = [event for event in self._unread if isinstance(event, Preview)]
        if len(waiting) >= MAX_PREVIEWS:
            self._unread.remove(waiting[0])
