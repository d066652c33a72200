"""Live sessions as the Python client holds them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from time import monotonic
from typing import Any

from app.client_handles import Handle
from app.client_http import ClientError, Http, problem_of
from app.client_stream import Event, Preview
from app.graph.document import Workflow

MAX_STATES = 256
KEEP_S = 10.0
"""How long a settled result may take to be moved to where it stays; on a full disk it never is."""


class LiveHandle(Handle):
    """A live session on the server. revision: the newest one that was asked for here."""

    def __init__(self, http: Http, id: str) -> None:
        super().__init__(http, id)
        self.revision = 1
        self.settles = True
        self._unread = deque(maxlen=MAX_STATES)
        self._state: dict[str, Any] | None = None
        self._order = asyncio.Lock()  # two connections could turn two changes round

    async def set(self, changes: Mapping[str, Any]) -> int:
        """Change inputs, {"Denoise.cfg": 3}; return the revision that has them. Raises ClientError, nothing changed."""
        return await self._ask("PATCH", {"set": dict(changes)})

    async def replace(self, document: Mapping[str, Any] | Workflow) -> int:
        """Take another document; return the revision that runs it. Raises ClientError, nothing changed."""
        data = document.to_json() if isinstance(document, Workflow) else dict(document)
        return await self._ask("PUT", {"document": data})

    async def states(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the session's states from the first on, each once, until it ends; of unread ones the newest 256.

        Raises ClientError when the server has ended it without being asked, or is gone.
        """
        async for state in self._read():
            yield state

    async def settled(self) -> dict[str, Any]:
        """Wait until the newest revision's result stands, and return the state with its outputs under `shown`.

        It stands when a fresh run with the same values gives the same, and its files are where they stay; with
        settle=False, when nothing runs any more. Raises ClientError with the problems of a revision that fails.
        """
        rests_since = None
        while True:
            if self.is_ended:
                raise self._error or ClientError.of(f"found live session {self.id}, which has ended; open another")
            state = self._state
            if state is None or state["revision"] < self.revision or not self._rests(state):
                rests_since = None
                await self._idle()
                continue
            shown = state["shown"]
            rests_since = rests_since or monotonic()
            left = rests_since + KEEP_S - monotonic()
            if shown["kept"] or not shown["settled"] or left <= 0:
                return state
            await self._change(left)

    async def close(self) -> None:
        """End the session. Raises ClientError when the server cannot be told."""
        try:
            await self._http.bytes("DELETE", f"/api/live/{self.id}")
        except ClientError as error:
            if error.status != 404:
                raise
        self.end()

    def take(self, event: Event) -> None:
        """See Handle."""
        if isinstance(event, Preview) or self.is_ended:
            return
        if event["type"] == "live.state":
            self._state = event
            self._put(event)
        elif event["type"] == "live.closed":
            self.end()

    async def recover(self) -> None:
        """See Handle."""
        try:
            state = await self._http.json("GET", f"/api/live/{self.id}")
        except ClientError as error:
            if error.status != 404:
                raise
            self.end(error)
        else:
            state.pop("document")
            self.take({"type": "live.state", **state})

    async def _ask(self, method: str, body: dict[str, Any]) -> int:
        async with self._order:
            answer = await self._http.json(method, f"/api/live/{self.id}", body)
        self.revision = max(self.revision, int(answer["revision"]))
        return int(answer["revision"])

    def _rests(self, state: Mapping[str, Any]) -> bool:
        """Return whether a state is one that stays. Raises ClientError when its revision has failed."""
        if state["state"] == "failed":
            raise ClientError(map(problem_of, state["problems"]))
        rests = state["state"] == "settled" or (state["state"] == "steered" and not self.settles)
        return rests and "shown" in state and state["shown"]["revision"] == state["revision"]
