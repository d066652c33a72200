"""/api/openapi.json: our own API as OpenAPI 3.1."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from functools import cache
from typing import Any

from aiohttp import web

from app.server.api.health import program_version
from app.server.workflow_store import read_template

routes = web.RouteTableDef()

ABOUT = """Ortloom's own API: runs, saved workflows, live sessions, packages of models, node types, the queue.

Beside it the server speaks the HTTP and WebSocket API of ComfyUI, bare and under /api (/prompt, /queue, /history,
/view, /upload/image, /object_info, /ws and more), which clients made for ComfyUI use as they are. Those routes are not
described here. Files of outputs are read there: GET /view?type=FOLDER&subfolder=...&filename=....

Errors are `{"errors": [...]}` with whole sentences. Without a token the server answers this machine only."""

SECURITY: dict[str, dict[str, Any]] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "The token that the server was started with"},
    "basic": {"type": "http", "scheme": "basic", "description": "The token as the password of any name"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "ortloom_token", "description": "Set by GET /?token=T"},
    "query": {"type": "apiKey", "in": "query", "name": "token", "description": "GET only, e.g. for WebSockets"},
}

_REGEX_IN_PATH = re.compile(r"\{(\w+):[^}]*\}")


@routes.get("/api/openapi.json")
async def openapi(request: web.Request) -> web.Response:
    """Describe this API. 200 the OpenAPI document."""
    return web.Response(body=await asyncio.to_thread(_encoded), content_type="application/json", charset="utf-8")


def own_handlers() -> dict[tuple[str, str], Any]:
    """Return every handler of our own API by method and path, as OpenAPI writes paths."""
    from app.server.app import OWN_ROUTES  # it imports this module

    return {
        (route.method, _REGEX_IN_PATH.sub(r"{\1}", route.path)): route.handler
        for module in OWN_ROUTES
        for route in module.routes
        if isinstance(route, web.RouteDef)
    }


def document() -> dict[str, Any]:
    """Return the whole OpenAPI document. Operations without a handler are left out."""
    from app.server.api.json_schema import ref
    from app.server.api.openapi_operations import OPERATIONS
    from app.server.api.openapi_parts import JSON
    from app.server.api.openapi_schemas import SCHEMAS

    handlers = own_handlers()
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in OPERATIONS.items():
        if handler := handlers.get((method, path)):
            paths.setdefault(path, {})[method.lower()] = {"summary": _summary(handler), **operation}
    failure = {"description": "Anything else went wrong", "content": {JSON: {"schema": ref("Errors")}}}
    live = {"document": read_template("text-to-image"), "set": {"Denoise.steps": 8}, "settle_ms": 200}
    components = {
        "schemas": SCHEMAS,
        "responses": {"Failure": failure},
        "examples": {"LiveTemplate": {"value": live}},
        "securitySchemes": SECURITY,
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Ortloom",
            "version": program_version(),
            "description": ABOUT,
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, *({name: []} for name in SECURITY)],
        "paths": paths,
        "components": components,
    }


@cache
def _encoded() -> bytes:
    return json.dumps(document()).encode()


def _summary(handler: Any) -> str:
    """Return the first sentence of a handler's docstring."""
    words = " ".join((inspect.getdoc(handler) or "").split())
    return re.split(r"\.(?= |$)", words, maxsplit=1)[0]
