"""/ws: ComfyUI's WebSocket."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

from aiohttp import WSMsgType, web

from app.server.comfy.feed import ComfySocket
from app.server.comfy.system import FEATURES
from app.server.keys import COMFY, SOCKETS
from app.server.outgoing import Outgoing

routes = web.RouteTableDef()

HEARTBEAT_S = 60.0
"""A client that answers no ping for half of this is gone; one that reads nothing for a minute is only slow."""
MAX_MESSAGE_BYTES = 1 << 20


@routes.get("/ws")
async def connect(request: web.Request) -> web.WebSocketResponse:
    """Tell the client `clientId` of its runs: messages as JSON texts, previews as binary frames. 101."""
    socket = web.WebSocketResponse(heartbeat=HEARTBEAT_S, max_msg_size=MAX_MESSAGE_BYTES, compress=False)
    await socket.prepare(request)
    request.app[SOCKETS].add(socket)
    feed = request.app[COMFY]
    client = ComfySocket(request.query.get("clientId") or uuid.uuid4().hex, Outgoing(socket))
    sending = asyncio.create_task(client.outgoing.run(request.transport))
    feed.add(client)
    try:
        is_first = True
        async for frame in socket:
            if is_first and frame.type is WSMsgType.TEXT:
                is_first = False
                _hear(client, frame.data)
    finally:
        request.app[SOCKETS].discard(socket)
        feed.remove(client)
        sending.cancel()
    return socket


def _hear(client: ComfySocket, text: str) -> None:
    """Take a client's first message, in which it may announce what it can read."""
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        return
    if not isinstance(data, dict) or data.get("type") != "feature_flags":
        return
    flags = data.get("data")
    client.wants_metadata = isinstance(flags, dict) and flags.get("supports_preview_metadata") is True
    client.send("feature_flags", FEATURES)
