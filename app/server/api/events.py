"""/api/events: the WebSocket of our own API: numbered events, previews, live sessions.

Server to client, texts: {"seq": number of the last event in it, "events": [...]}; the first frame says `hello`.
Server to client, binary: 4 bytes of header length (big endian), JSON header of type `preview`, picture.
Client to server: {"type": "subscribe" | "unsubscribe", "run" | "live_id": ID} or {"all": true};
{"type": "live.open" | "live.set" | "live.replace" | "live.close", "ref"?: any, ...}, answered by `reply` or `error`.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from typing import Any

from aiohttp import WSMsgType, web

from app.graph.document import decode
from app.graph.errors import Problem, WorkflowError
from app.server.api.live import changes_of, document_of, opened
from app.server.body import SMALL_BYTES
from app.server.errors import ApiError, problem_json
from app.server.keys import FEED, LIVE, SOCKETS, STREAMS
from app.server.outgoing import Outgoing
from app.server.streams import Stream, joined

routes = web.RouteTableDef()

HEARTBEAT_S = 60.0
MAX_MESSAGE_BYTES = 16 << 20
MAX_CLIENT_ID = 200


@routes.get("/api/events")
async def connect(request: web.Request) -> web.WebSocketResponse:
    """Tell the client `client_id` of its runs; from `stream` and `after` on when it has been here. 101; 400."""
    client_id = request.query.get("client_id") or uuid.uuid4().hex
    if len(client_id) > MAX_CLIENT_ID:
        raise ApiError(400, f"found a client_id of {len(client_id)} characters, accepted at most {MAX_CLIENT_ID}")
    after = _after(request)
    socket = web.WebSocketResponse(heartbeat=HEARTBEAT_S, max_msg_size=MAX_MESSAGE_BYTES, compress=False)
    await socket.prepare(request)
    request.app[SOCKETS].add(socket)
    streams = request.app[STREAMS]
    stream, outgoing = streams.open(client_id), Outgoing(socket, joined)
    _greet(request, stream, outgoing, after)
    streams.attach(stream, outgoing)
    if request.query.get("subscribe") == "all":
        streams.subscribe(stream, "all")
    sending = asyncio.create_task(outgoing.run(request.transport))
    try:
        async for frame in socket:
            if frame.type is WSMsgType.TEXT:
                answer = await _take(request.app, stream, frame.data)
                if answer is not None:
                    outgoing.text(json.dumps(answer).encode(), stream.number)
    finally:
        request.app[SOCKETS].discard(socket)
        streams.detach(stream, outgoing)
        sending.cancel()
    return socket


def _after(request: web.Request) -> int | None:
    text = request.query.get("after")
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 15:
        raise ApiError(400, f"found after={text[:40]!r}, accepted the number of the last event seen; leave it out")
    return int(text)


def _greet(request: web.Request, stream: Stream, outgoing: Outgoing, after: int | None) -> None:
    """Send hello, and what the client missed or that this is kept no more."""
    hello = {"type": "hello", "client_id": stream.client_id, "stream": stream.id, "after": stream.number}
    if after is None:
        missed: list[tuple[int, bytes]] | None = []
    else:
        hello["after"] = after
        missed = stream.after(after) if request.query.get("stream") == stream.id else None
    if missed is None:
        hello |= {"after": stream.number, "too_old": True}
        hello["message"] = (
            f"found event {after}, whose successors are kept no more; ask GET /api/runs and GET /api/live for what "
            "holds now"
        )
    outgoing.text(json.dumps(hello).encode(), hello["after"])  # type: ignore[arg-type]
    for number, payload in missed or ():
        outgoing.text(payload, number)
    if request.app[FEED].queue_event:
        outgoing.text(json.dumps(request.app[FEED].queue_event).encode(), stream.number)


async def _take(app: web.Application, stream: Stream, text: str) -> dict[str, Any] | None:
    """Do what a message asks; return the answer, if it has one."""
    ref: Any = None
    try:
        message = decode(text) if len(text) <= SMALL_BYTES else await asyncio.to_thread(decode, text)
        if not isinstance(message, dict):
            raise WorkflowError.of("found no object, accepted a JSON object with a `type`; send one", "shape")
        ref = message.get("ref")
        answer = await _do(app, stream, message)
    except WorkflowError as error:
        return {"type": "error", "ref": ref, "errors": [problem_json(problem) for problem in error.problems]}
    except ApiError as error:
        return {"type": "error", "ref": ref, "errors": [problem_json(error.problem)]}
    return None if answer is None else {"type": "reply", "ref": ref, **answer}


async def _do(app: web.Application, stream: Stream, message: Mapping[str, Any]) -> dict[str, Any] | None:
    live = app[LIVE]
    kind = message.get("type")
    if kind in ("subscribe", "unsubscribe"):
        subscribe = app[STREAMS].subscribe if kind == "subscribe" else app[STREAMS].unsubscribe
        subscribe(stream, _topic(message))
        return {}
    if kind == "live.open":
        session = await opened(app, message, stream.client_id)
        return {"live_id": session.id, "revision": session.revision}
    if kind in ("live.set", "live.replace", "live.close"):
        session = live.get(str(message.get("live_id")))
        if kind == "live.set":
            return {"live_id": session.id, "revision": await live.set(session, changes_of(message))}
        if kind == "live.replace":
            return {"live_id": session.id, "revision": await live.replace(session, document_of(message))}
        live.end(session)
        return {"live_id": session.id}
    accepted = "subscribe, unsubscribe, live.open, live.set, live.replace or live.close"
    problem = Problem(f"found type {str(kind)[:40]!r}, accepted {accepted}; send one of these", "shape", input="type")
    raise WorkflowError([problem])


def _topic(message: Mapping[str, Any]) -> str:
    if message.get("all") is True:
        return "all"
    for key, prefix in (("run", "run"), ("live_id", "live")):
        if isinstance(message.get(key), str):
            return f"{prefix}:{message[key][:MAX_CLIENT_ID]}"
    found = f"found neither run, live_id nor all in {json.dumps(dict(message))[:80]}"
    raise WorkflowError.of(f"{found}, accepted one of them; say what to hear of", "shape")
