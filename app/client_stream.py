"""The event stream of the Python client: one WebSocket that is made again when it breaks, and loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeAlias
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from app.client_http import CONNECT_S, Address, ClientError, reason_of

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
CLOSE_S = 2.0
MAX_FRAME_BYTES = 64 << 20
"""The server cuts a client off long before so much waits for it."""


@dataclass(frozen=True, slots=True)
class Preview:
    """A picture to look at while a run goes on.

    header: run, node, step, index and what else the server says of it. picture: a JPEG file.
    """

    header: dict[str, Any]
    picture: bytes


Event: TypeAlias = dict[str, Any] | Preview
Frame: TypeAlias = dict[str, Any]
"""{"seq": number of the last event, "events": [...]}."""


class EventStream:
    """Everything that concerns one client id, in order, each event once, over as many connections as it takes.

    take: called with every event. recover: called when the server cannot tell what was missed, before later events are
    taken; it raises ClientError when it could not learn what holds now, and is called again. fail: called once, when
    no connection can be made for `reconnect_s` or the server refuses it.
    """

    def __init__(
        self,
        address: Address,
        client_id: str,
        reconnect_s: float,
        take: Callable[[Event], None],
        recover: Callable[[], Awaitable[None]],
        fail: Callable[[ClientError], None],
    ) -> None:
        self._address = address
        self._client_id = client_id
        self._reconnect_s = reconnect_s
        self._take = take
        self._recover = recover
        self._fail = fail
        self._stream = ""
        self._after: int | None = None
        self._is_behind = False
        self._opening = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect, unless that is done, and return once the server collects events. Raises ClientError."""
        async with self._opening:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._listen(*await self._connect()))

    async def close(self) -> None:
        """End the connection."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _listen(self, socket: ClientConnection, first: Frame) -> None:
        try:
            while True:
                await self._read(socket, first)
                socket, first = await self._connect_again()
        except ClientError as error:
            self._fail(error)
        except (ValueError, LookupError, TypeError) as error:
            found = f"found events at {self._address.url} that cannot be read ({type(error).__name__}: {error})"
            self._fail(ClientError.of(f"{found}; check that it is an Ortloom server of this version", "bad_event"))

    async def _read(self, socket: ClientConnection, first: Frame) -> None:
        """Take what comes until the connection ends. Raises ClientError when the server refuses to say what holds."""
        try:
            if self._is_behind:
                await self._recover()
                self._is_behind = False
            self._take_frame(first)
            async for frame in socket:
                if isinstance(frame, bytes):
                    self._take(_preview(frame))
                else:
                    self._take_frame(json.loads(frame))
        except ConnectionClosed:
            pass
        except ClientError as error:
            if not error.may_pass:
                raise
        finally:
            await socket.close()

    def _take_frame(self, frame: Frame) -> None:
        for event in frame["events"]:
            self._take(event)
        self._after = int(frame["seq"])

    async def _connect_again(self) -> tuple[ClientConnection, Frame]:
        """Connect as soon as that can be done. Raises ClientError when it takes too long or is refused."""
        end, pause = monotonic() + self._reconnect_s, FIRST_PAUSE_S
        while True:
            await asyncio.sleep(pause)
            try:
                return await self._connect()
            except ClientError as error:
                if not error.may_pass or monotonic() > end:
                    raise
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _connect(self) -> tuple[ClientConnection, Frame]:
        """Return a connection and its first frame, in which the server greets. Raises ClientError."""
        query = {"client_id": self._client_id}
        if self._after is not None:
            query |= {"stream": self._stream, "after": str(self._after)}
        try:
            socket = await connect(
                f"{self._address.socket_url}/api/events?{urlencode(query)}",
                additional_headers=self._address.headers,
                open_timeout=CONNECT_S,
                close_timeout=CLOSE_S,
                max_size=MAX_FRAME_BYTES,
                compression=None,
                proxy=None,  # as for HTTP
            )
            async with asyncio.timeout(CONNECT_S):
                frame = json.loads(await socket.recv())
        except InvalidStatus as error:
            response = error.response
            raise self._address.refusal(response.status_code, bytes(response.body or b""), "GET /api/events") from error
        except (OSError, WebSocketException, EOFError) as error:  # TimeoutError is an OSError
            raise self._address.unreachable(reason_of(error)) from error
        hello = frame["events"][0]
        self._stream, self._after = str(hello["stream"]), int(hello["after"])
        self._is_behind |= bool(hello.get("too_old"))
        return socket, frame


def _preview(frame: bytes) -> Preview:
    """Return the preview in a frame: 4 bytes of header length (big endian), JSON header, picture."""
    length = int.from_bytes(frame[:4], "big")
    return Preview(json.loads(frame[4 : 4 + length]), frame[4 + length :])
