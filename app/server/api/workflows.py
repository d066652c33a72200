"""Routes of saved workflows and templates."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from aiohttp import web

from app.graph.comfy import load, read_any
from app.png import SIGNATURE, read_workflow
from app.server.body import read_object
from app.server.errors import ApiError, problem_json
from app.server.keys import SETTINGS
from app.server.workflow_store import ANY, Conflict, WorkflowStore, encode, read_template, template_entries

routes = web.RouteTableDef()

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.Response]]


def _tells_version(handler: Handler) -> Handler:
    """Answer a Conflict with the version that is there, beside the errors."""

    @wraps(handler)
    async def answer(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except Conflict as conflict:
            body = {"errors": [problem_json(conflict.problem)], "version": conflict.version}
            return web.json_response(body, status=conflict.status)

    return answer


@routes.get("/api/workflows")
async def list_workflows(request: web.Request) -> web.Response:
    """List the saved workflows. 200 {"workflows": [{name, bytes, modified, title, node_count, error}], "is_cut"}."""
    entries, is_cut = await asyncio.to_thread(_store(request).listing)
    return web.json_response({"workflows": entries, "is_cut": is_cut})


@routes.get("/api/workflows/{name:.+}")
async def read_workflow_route(request: web.Request) -> web.Response:
    """Answer a saved workflow. 200 {name, version, document} and ETag; 400 bad name; 404; 422 the file is broken."""
    name = request.match_info["name"]
    document, version = await asyncio.to_thread(_store(request).read, name)
    return await _json({"name": name, "version": version, "document": document}, version=version)


@routes.put("/api/workflows/{name:.+}")
@_tells_version
async def save_workflow(request: web.Request) -> web.Response:
    """Save {"document", "version"}; If-Match wins over the version, null means that the name is new, "*" whatever.

    200 or 201 {name, version}; 400 bad name or body; 409 {errors, version} another version is there; 413; 422 no
    workflow, with every problem; 507 cannot be written. What cannot run, as node types are unknown, is saved too.
    """
    name = request.match_info["name"]
    body = await read_object(request)
    expected = _version(request, body.get("version"))
    document = body.get("document")
    version, is_new = await asyncio.to_thread(_store(request).save, name, document, expected)
    return await _json({"name": name, "version": version}, 201 if is_new else 200, version)


@routes.delete("/api/workflows/{name:.+}")
@_tells_version
async def delete_workflow(request: web.Request) -> web.Response:
    """Delete the version in If-Match or ?version=, "*" for any.

    204; 400 bad name; 404; 409 {errors, version}; 428 no version given; 507 cannot be deleted.
    """
    expected = _version(request, request.query.get("version"))
    if expected is None:
        message = 'found no version, accepted one in If-Match or in ?version=; send it, or "*" to delete any'
        raise ApiError(428, message, "no_version")
    await asyncio.to_thread(_store(request).delete, request.match_info["name"], expected)
    return web.Response(status=204)


@routes.post("/api/workflows/import")
async def import_workflow(request: web.Request) -> web.Response:
    """Read a workflow out of a PNG or JSON of a known format, as the body or its first file; it is not saved.

    200 {"document"}; 400 a broken form; 413; 422 it holds no JSON or no workflow.
    """
    data = await _uploaded(request)
    document = await asyncio.to_thread(_document_in, data)
    return await _json({"document": document})


@routes.post("/api/workflows/{name:.+}/rename")
@_tells_version
async def rename_workflow(request: web.Request) -> web.Response:
    """Rename to {"to"}; If-Match or "version" may say which version. 200 {name, version}; 400; 404; 409; 507."""
    body = await read_object(request)
    expected = _version(request, body.get("version", ANY))
    to = _new_name(body)
    version = await asyncio.to_thread(_store(request).rename, request.match_info["name"], to, expected)
    return await _json({"name": to, "version": version}, version=version)


@routes.post("/api/workflows/{name:.+}/duplicate")
@_tells_version
async def duplicate_workflow(request: web.Request) -> web.Response:
    """Copy to {"to"}. 201 {name, version}; 400 bad name; 404; 409 {errors, version} the name is taken; 507."""
    to = _new_name(await read_object(request))
    version = await asyncio.to_thread(_store(request).duplicate, request.match_info["name"], to)
    return await _json({"name": to, "version": version}, 201, version)


@routes.get("/api/templates")
async def list_templates(request: web.Request) -> web.Response:
    """List the bundled workflows. 200 {"templates": [{name, title, note, bytes}]}."""
    return web.json_response({"templates": await asyncio.to_thread(template_entries)})


@routes.get("/api/templates/{name}")
async def read_template_route(request: web.Request) -> web.Response:
    """Answer a bundled workflow. 200 {name, document}; 404."""
    name = request.match_info["name"]
    return await _json({"name": name, "document": await asyncio.to_thread(read_template, name)})


def _store(request: web.Request) -> WorkflowStore:
    return WorkflowStore(request.app[SETTINGS].workflows)


def _version(request: web.Request, given: Any) -> str | None:
    """Return the version that a request expects: If-Match, else the one given. Raises ApiError 400."""
    header = request.headers.get("If-Match")
    if header is not None:
        return header.strip().removeprefix("W/").strip('"')
    if given is None or isinstance(given, str):
        return given
    raise ApiError(400, f'found version {given!r}, accepted a text, null or "*"; send the one last read', "bad_version")


def _new_name(body: dict[str, Any]) -> str:
    to = body.get("to")
    if isinstance(to, str) and to:
        return to
    raise ApiError(400, f"found {to!r} as `to`, accepted the new name as a text; send it", "bad_name")


async def _json(data: dict[str, Any], status: int = 200, version: str | None = None) -> web.Response:
    """Answer JSON, encoded off the event loop, as documents may be large. Raises WorkflowError."""
    body = await asyncio.to_thread(encode, data)
    headers = {} if version is None else {"ETag": f'"{version}"'}
    return web.Response(body=body, status=status, headers=headers, content_type="application/json", charset="utf-8")


async def _uploaded(request: web.Request) -> bytes:
    """Return the body, or the first file of a form, or its first field. Raises ApiError 400."""
    if not request.content_type.startswith("multipart/"):
        return await request.read()
    try:
        form = await request.post()
    except (ValueError, LookupError, RuntimeError, AssertionError) as error:  # what aiohttp raises for broken ones
        raise ApiError(400, "found a broken multipart body, accepted one with a file; send it again", "form") from error
    fields = list(form.values())
    field = next((field for field in fields if isinstance(field, web.FileField)), fields[0] if fields else "")
    if isinstance(field, web.FileField):
        return await asyncio.to_thread(field.file.read)
    return bytes(field) if isinstance(field, bytes | bytearray) else field.encode()


def _document_in(data: bytes) -> dict[str, Any]:
    """Return our document of a file's bytes. Raises WorkflowError."""
    if not data.startswith(SIGNATURE):
        return load(data).to_json()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "picture.png"
        path.write_bytes(data)
        return read_any(read_workflow(path)).to_json()
