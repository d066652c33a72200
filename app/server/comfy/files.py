"""Files over ComfyUI's API: /view, /upload/image, /upload/mask."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from aiohttp import BodyPartReader, web

from app.server.client_paths import inside
from app.server.comfy.pictures import check_pixels, re_encoded, with_alpha
from app.server.comfy.uploads import Received, place, receive
from app.server.errors import ApiError
from app.server.keys import SETTINGS
from app.server.settings import ServerSettings

routes = web.RouteTableDef()

PASSIVE_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".bmp": "image/bmp",
    ".wav": "audio/wav",
    ".mp3": "audio/mpeg",
    ".ogg": "audio/ogg",
    ".flac": "audio/flac",
    ".mp4": "video/mp4",
    ".webm": "video/webm",
    ".txt": "text/plain",
    ".csv": "text/plain",
    ".json": "text/plain",
}
"""What is shown in place. Everything else, HTML and SVG above all, is only ever offered as a download: a browser would
run what is in it with this server's rights."""

_TYPES = ("input", "output", "temp")
_ANNOTATED = re.compile(r"(?P<name>.*) \[(?P<type>input|output|temp)\]", re.DOTALL)
_SANDBOX = {"Content-Security-Policy": "sandbox; default-src 'none'"}


@routes.get("/view")
async def view(request: web.Request) -> web.StreamResponse:
    """Return a file: `filename`, `subfolder`, `type`; `preview` and `channel` encode a picture anew.

    200 file; 400 bad name, type or picture; 403 outside of its folder; 404 missing.
    """
    name, kind = request.query.get("filename", ""), request.query.get("type", "output")
    if match := _ANNOTATED.fullmatch(name):
        name, kind = match["name"], match["type"]
    path = _existing(request.app[SETTINGS], kind, request.query.get("subfolder", ""), name)
    if path is None:
        raise ApiError(404, f"found no file {name[:100]!r} in {kind}; check its name and subfolder", "file_missing")
    quoted = path.name.replace("\\", "_").replace('"', "_")
    headers = {**_SANDBOX, "Content-Disposition": f'filename="{_latin(quoted)}"'}
    if "preview" in request.query or request.query.get("channel", "rgba") != "rgba":
        data, content_type = await asyncio.to_thread(
            re_encoded, path, request.query.get("preview"), request.query.get("channel", "rgba")
        )
        return web.Response(body=data, content_type=content_type, headers=headers)
    content_type = PASSIVE_TYPES.get(path.suffix.lower(), "application/octet-stream")
    if content_type == "application/octet-stream":
        headers["Content-Disposition"] = f"attachment; {headers['Content-Disposition']}"
    if content_type == "text/plain":
        content_type += "; charset=utf-8"
    return web.FileResponse(path, headers={**headers, "Content-Type": content_type})


@routes.post("/upload/image")
async def upload_image(request: web.Request) -> web.Response:
    """Store a form's `image` in `type` and `subfolder`. 200 {"name", "subfolder", "type"}; 400; 403; 413; 507."""
    settings = request.app[SETTINGS]
    received = await _received(request, settings)
    try:
        await asyncio.to_thread(check_pixels, received.file)
        return await _stored(settings, received)
    finally:
        received.file.unlink(missing_ok=True)


@routes.post("/upload/mask")
async def upload_mask(request: web.Request) -> web.Response:
    """Store the picture `original_ref` with the uploaded picture's alpha. 200 as /upload/image; 400; 404; 507."""
    settings = request.app[SETTINGS]
    received = await _received(request, settings)
    try:
        await asyncio.to_thread(check_pixels, received.file)
        original = _original(settings, received.fields.get("original_ref"))
        await asyncio.to_thread(with_alpha, original, received.file)
        return await _stored(settings, received)
    finally:
        received.file.unlink(missing_ok=True)


async def _received(request: web.Request, settings: ServerSettings) -> Received:
    if not request.content_type.startswith("multipart/"):
        raise ApiError(400, "found no multipart form, accepted one with the file as `image`; send it so", "bad_upload")
    try:
        reader = await request.multipart()
        received = await receive(_parts(reader), settings.temp)
    except (ValueError, AssertionError, UnicodeDecodeError, RuntimeError) as error:
        raise ApiError(400, f"found a form that cannot be read ({error}); send it again", "bad_upload") from None
    return received


async def _parts(reader: Any) -> Any:
    while (part := await reader.next()) is not None:
        if isinstance(part, BodyPartReader):
            yield part


async def _stored(settings: ServerSettings, received: Received) -> web.Response:
    kind = received.fields.get("type") or "input"
    root = _root(settings, kind)
    subfolder = received.fields.get("subfolder", "").strip("/")
    target = inside(root, subfolder, received.name)
    overwrites = received.fields.get("overwrite", "").lower() in ("true", "1")
    path = await asyncio.to_thread(place, received.file, target, overwrites)
    return web.json_response({"name": path.name, "subfolder": subfolder, "type": kind})


def _original(settings: ServerSettings, text: str | None) -> Path:
    try:
        reference = json.loads(text or "")
    except (ValueError, RecursionError):
        reference = None
    if not isinstance(reference, dict) or not isinstance(reference.get("filename"), str):
        accepted = 'an object such as {"filename": "cat.png", "type": "input"}'
        raise ApiError(400, f"found no usable original_ref, accepted {accepted}; send one", "bad_upload")
    kind, subfolder = str(reference.get("type") or "input"), str(reference.get("subfolder") or "")
    path = _existing(settings, kind, subfolder, reference["filename"])
    if path is None:
        raise ApiError(404, f"found no file {reference['filename'][:100]!r} in {kind}; upload it first", "file_missing")
    return path


def _existing(settings: ServerSettings, kind: str, subfolder: str, name: str) -> Path | None:
    """Return the file that a client names, or None. Raises ApiError 400 and 403."""
    if not name:
        raise ApiError(400, "found no filename, accepted the name of a file; send one", "bad_name")
    roots = [_root(settings, kind)]
    if kind == "input":
        roots += [folder for folder in settings.folders.inputs if folder != settings.input]
    for root in roots:
        path = inside(root, subfolder.strip("/"), name)
        if path.is_file():
            return path
    return None


def _root(settings: ServerSettings, kind: str) -> Path:
    if kind not in _TYPES:
        message = f"found type {kind[:40]!r}, accepted one of {', '.join(_TYPES)}; choose one of these"
        raise ApiError(400, message, "bad_type")
    roots: dict[str, Path] = {"input": settings.input, "output": settings.output, "temp": settings.temp}
    return roots[kind]


def _latin(text: str) -> str:
    """Return a name as a header can hold it."""
    return text.encode("latin-1", "replace").decode("latin-1")
