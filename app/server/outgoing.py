"""The sending side of one WebSocket: nobody who publishes waits for it, however slowly its client reads."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

from aiohttp import web

MAX_BACKLOG_BYTES = 16 << 20
"""What may wait for a client before its connection is cut; it then asks for what it missed."""
MAX_FRAME_BYTES = 256 << 10

Join: TypeAlias = Callable[[Sequence[tuple[int, bytes]]], bytes]
"""Makes one text frame of numbered payloads."""


class Outgoing:
    """What waits for one client. Texts are sent in order, none left out; of previews with one key only the newest is.

    join: makes one frame of several texts; None sends each as a frame of its own.
    """

    def __init__(self, socket: web.WebSocketResponse, join: Join | None = None) -> None:
        self._socket = socket
        self._join = join
        self._texts: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._previews: OrderedDict[Hashable, bytes] = OrderedDict()
        self._wake = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._is_cut = False

    def text(self, payload: bytes, number: int = 0) -> None:
        """Send a text as soon as the client has taken what stands before it; cut off a client that never does."""
        if self._is_cut:
            return
        self._texts.append((number, payload))
        self._bytes += len(payload)
        self._wake.set()
        if self._bytes > MAX_BACKLOG_BYTES:
            self.cut()

    def preview(self, key: Hashable, payload: bytes) -> None:
        """Send a picture, in place of an older one with the same key that still waits."""
        self._previews.pop(key, None)
        self._previews[key] = payload
        self._wake.set()

    def cut(self) -> None:
        """End the connection at once."""
        self._is_cut = True
        self._texts.clear()
        self._previews.clear()
        if self._transport is not None:
            self._transport.abort()

    async def run(self, transport: asyncio.BaseTransport | None) -> None:
        """Send until the connection ends or this is cancelled."""
        self._transport = transport if isinstance(transport, asyncio.Transport) else None
        if self._is_cut:
            self.cut()
        with contextlib.suppress(ConnectionError, RuntimeError):
            while not self._socket.closed:
                await self._wake.wait()
                self._wake.clear()
                while self._texts or self._previews:
                    await self._send_next()

    async def _send_next(self) -> None:
        if not self._texts:
            _, picture = self._previews.popitem(last=False)
            await self._socket.send_bytes(picture)
        elif self._join is None:
            _, payload = self._texts.popleft()
            self._bytes -= len(payload)
            await self._socket.send_str(payload.decode())
        else:
            await self._socket.send_str(self._join(self._take_frame()).decode())

    def _take_frame(self) -> list[tuple[int, bytes]]:
        taken = [self._texts.popleft()]
        size = len(taken[0][1])
        while self._texts and size + len(self._texts[0][1]) <= MAX_FRAME_BYTES:
            taken.append(self._texts.popleft())
            size += len(taken[-1][1])
        self._bytes -= size
        return taken


class OpenSockets(set[web.WebSocketResponse]):
    """Open WebSockets, to be closed when the server ends."""
