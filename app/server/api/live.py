"""Live sessions over HTTP (live.md): open, change, replace, state, end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from app.graph.comfy import read_any
from app.graph.document import Workflow
from app.graph.errors import WorkflowError
from app.server.body import read_object
from app.server.keys import LIVE
from app.server.live_session import LiveOptions, LiveSession
from app.server.run_requests import RunRequest

routes = web.RouteTableDef()


@routes.post("/api/live")
async def open_live(request: web.Request) -> web.Response:
    """Open a session on the body's document and run its first revision. 201 state; 422 problems; 429 too many."""
    session = await opened(request.app, await read_object(request))
    return web.json_response(session.to_json(), status=201)


@routes.get("/api/live")
async def list_live(request: web.Request) -> web.Response:
    """List the open sessions. 200 {"sessions": [state]}."""
    return web.json_response({"sessions": [session.to_json() for session in request.app[LIVE].all()]})


@routes.get("/api/live/{live_id}")
async def get_live(request: web.Request) -> web.Response:
    """Return a session's state and its document. 200; 404 unknown or ended."""
    session = request.app[LIVE].get(request.match_info["live_id"])
    return web.json_response({**session.to_json(), "document": session.workflow.to_json()})


@routes.patch("/api/live/{live_id}")
async def change_live(request: web.Request) -> web.Response:
    """Change inputs: {"set": {"5.cfg": 3.0}}. 200 {"revision"}; 404; 422 problems, and nothing is changed."""
    session = request.app[LIVE].get(request.match_info["live_id"])
    changes = changes_of(await read_object(request))
    return web.json_response({"revision": await request.app[LIVE].set(session, changes)})


@routes.put("/api/live/{live_id}")
async def replace_live(request: web.Request) -> web.Response:
    """Replace the whole document. 200 {"revision"}; 404; 422 problems, and nothing is changed."""
    session = request.app[LIVE].get(request.match_info["live_id"])
    workflow = document_of(await read_object(request))
    return web.json_response({"revision": await request.app[LIVE].replace(session, workflow)})


@routes.delete("/api/live/{live_id}")
async def end_live(request: web.Request) -> web.Response:
    """End a session. 204; 404 unknown or ended."""
    live = request.app[LIVE]
    live.end(live.get(request.match_info["live_id"]))
    return web.Response(status=204)


async def opened(app: web.Application, body: Mapping[str, Any], client_id: str = "") -> LiveSession:
    """Open the session that a body asks for: document, set, client_id, name and the options. Raises WorkflowError."""
    wanted = RunRequest.parse(body)
    return await app[LIVE].open(
        wanted.workflow, LiveOptions.parse(dict(body)), client_id or wanted.client_id or "", wanted.name
    )


def changes_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return {NODE.INPUT: value} of a body's `set`. Raises WorkflowError."""
    changes = body.get("set")
    if not isinstance(changes, dict) or not changes:
        message = f'found set {str(changes)[:60]}, accepted an object such as {{"Denoise.cfg": 3}}; send one'
        raise WorkflowError.of(message, "shape", input="set")
    return changes


def document_of(body: Mapping[str, Any]) -> Workflow:
    """Return the workflow in a body: under `document`, or the body itself. Raises WorkflowError."""
    return read_any(body.get("document", body))
