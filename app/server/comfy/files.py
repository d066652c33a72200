"""Files over ComfyUI's API: /view, /upload/image, /upload/mask."""

from __future__ import annotations

import asyncio
import json
import re
import struct
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar
from urllib.parse import quote

from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.http import HttpProcessingError

from app.server.body import MAX_UPLOAD_BYTES
from app.server.client_paths import inside
from app.server.comfy.pictures import check_pixels, re_encoded, with_alpha
from app.server.comfy.uploads import Received, place, receive
from app.server.errors import ApiError
from app.server.keys import SETTINGS
from app.server.settings import ServerSettings
from app.server.user_files import changing

routes = web.RouteTableDef()

P = ParamSpec("P")
T = TypeVar("T")

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
    ".json": "application/json",
}
"""What is shown in place. Everything else, HTML and SVG above all, is only ever offered as a download: a browser would
run what is in it with this server's rights. JSON goes by its own type: browsers do not run it, clients look for it."""

_ANNOTATED = re.compile(r"(?P<name>.*) \[(?P<type>input|output|temp)\]", re.DOTALL)
_CAREFUL = {
    # Enough for the page that a browser makes around a picture or a film opened by itself.
    "Content-Security-Policy": (
        "default-src 'none'; img-src 'self'; media-src 'self'; style-src 'unsafe-inline'; sandbox"
    ),
    "Cache-Control": "private, no-cache",  # a name may get other bytes; the ETag says whether it has
}
_DECODERS = ThreadPoolExecutor(2, "pictures")
"""A decoded picture takes up to 512 MiB: no more than two at once."""


@routes.get("/view")
async def view(request: web.Request) -> web.StreamResponse:
    """Return a file: `filename`, `subfolder`, `type`; `preview` and `channel` encode a picture anew.

    200 file; 400 bad name, type or picture; 403 outside of its folder; 404 missing.
    """
    query = request.query
    name, kind = _with_kind(query.get("filename", ""), query.get("type", "output"))
    path = _existing(request.app[SETTINGS], kind, query.get("subfolder", ""), name)
    if "preview" in query or query.get("channel") in ("rgb", "a"):
        preview, channel = _wanted(query.get("preview"), query.get("channel", ""))
        data, picture_type = await _decoding(re_encoded, path, preview, channel)
        headers = {**_CAREFUL, "Content-Disposition": _disposition(path.name)}
        return web.Response(body=data, content_type=picture_type, headers=headers)
    return file_response(path)


def file_response(path: Path) -> web.FileResponse:
    """Return a file so that no browser runs what is in it; with ETag, Last-Modified and ranges."""
    content_type = PASSIVE_TYPES.get(path.suffix.lower())
    disposition = _disposition(path.name) if content_type else f"attachment; {_disposition(path.name)}"
    if content_type in ("text/plain", "application/json"):
        content_type += "; charset=utf-8"
    headers = {"Content-Type": content_type or "application/octet-stream", "Content-Disposition": disposition}
    return web.FileResponse(path, headers=_CAREFUL | headers)


@routes.post("/upload/image")
async def upload_image(request: web.Request) -> web.Response:
    """Store a form's `image` in `type` and `subfolder`. 200 {"name", "subfolder", "type"}; 400; 409; 413; 507."""
    settings = request.app[SETTINGS]
    received = await _received(request, settings)
    try:
        await _decoding(check_pixels, received.file)
        return await _stored(settings, received)
    finally:
        received.file.unlink(missing_ok=True)


@routes.post("/upload/mask")
async def upload_mask(request: web.Request) -> web.Response:
    """Store the picture `original_ref` with the uploaded picture's alpha, as PNG.

    200 as /upload/image; 400; 403 and 404 for the original; 409; 413; 507.
    """
    settings = request.app[SETTINGS]
    received = await _received(request, settings)
    try:
        if not received.name.lower().endswith(".png"):
            message = f"found {received.name[-60:]!r}, accepted a name that ends in .png; a mask is stored as PNG"
            raise ApiError(400, message, "bad_name")
        await _decoding(check_pixels, received.file)
        original = _original(settings, received.fields.get("original_ref", ""))
        await _decoding(with_alpha, original, received.file)
        return await _stored(settings, received)
    finally:
        received.file.unlink(missing_ok=True)


async def _received(request: web.Request, settings: ServerSettings) -> Received:
    if request.content_type != "multipart/form-data":
        raise ApiError(400, "found no multipart form, accepted one with the file as `image`; send it so", "bad_upload")
    if (request.content_length or 0) > MAX_UPLOAD_BYTES:
        limit = MAX_UPLOAD_BYTES >> 20
        raise ApiError(413, f"found a form of more than {limit} MiB, accepted less; send a smaller file", "too_large")
    try:
        return await receive(_parts(await request.multipart()), settings.temp)
    except (ValueError, AssertionError, RuntimeError, HttpProcessingError) as error:  # all that aiohttp raises
        message = f"found a form that cannot be read ({str(error)[:100]}), accepted multipart/form-data; send it again"
        raise ApiError(400, message, "bad_upload") from None


async def _parts(reader: MultipartReader) -> AsyncIterator[BodyPartReader]:
    while (part := await reader.next()) is not None:
        encoding = part.headers.get("Content-Transfer-Encoding", "binary").lower()
        if "Content-Encoding" in part.headers or encoding not in ("binary", "8bit", "7bit"):
            raise ApiError(
                400, "found a part that is encoded, accepted its plain bytes; send it as it is", "bad_upload"
            )
        if isinstance(part, BodyPartReader):
            yield part


async def _stored(settings: ServerSettings, received: Received) -> web.Response:
    kind = received.fields.get("type") or "input"
    root = _root(settings, kind)
    try:
        target = inside(root, _subfolder(received.fields.get("subfolder", "")), received.name)
    except ApiError as error:  # 400 here even for a name that leads outside: clients of uploads know no 403
        raise ApiError(400, error.problem.message, error.problem.code) from None
    overwrites = received.fields.get("overwrite", "").lower() in ("true", "1")
    path = (await asyncio.to_thread(_place, received.file, target, overwrites)).relative_to(root)
    subfolder = path.parent.as_posix() if len(path.parts) > 1 else ""
    return web.json_response({"name": path.name, "subfolder": subfolder, "type": kind})


def _place(file: Path, target: Path, overwrites: bool) -> Path:
    with changing(target.name):
        return place(file, target, overwrites)


def _original(settings: ServerSettings, text: str) -> Path:
    try:
        reference = json.loads(text)
    except (ValueError, RecursionError):
        reference = None
    values = reference if isinstance(reference, dict) else {}
    name, kind, subfolder = values.get("filename"), values.get("type") or "output", values.get("subfolder") or ""
    if not (isinstance(name, str) and isinstance(kind, str) and isinstance(subfolder, str)):
        accepted = 'an object such as {"filename": "cat.png", "type": "input"}'
        raise ApiError(400, f"found no usable original_ref, accepted {accepted}; send one", "bad_upload")
    name, kind = _with_kind(name, kind)
    return _existing(settings, kind, subfolder, name)


def _existing(settings: ServerSettings, kind: str, subfolder: str, name: str) -> Path:
    """Return the file that a client names. Raises ApiError 400, 403 and 404."""
    roots = [_root(settings, kind)]
    if kind == "input":
        roots += [folder for folder in settings.folders.inputs if folder != settings.input]
    if not name or ".." in name.split("/") or name.startswith("/"):
        message = f"found filename {name[:60]!r}, accepted the name of a file; put its folder into subfolder"
        raise ApiError(400, message, "bad_name")
    for root in roots:
        path = inside(root, _subfolder(subfolder), name)
        if path.is_file():
            return path
    message = f"found no file {name[:100]!r} in {kind}, accepted one that is there; check its name and subfolder"
    raise ApiError(404, message, "file_missing")


def _root(settings: ServerSettings, kind: str) -> Path:
    roots = {"input": settings.input, "output": settings.output, "temp": settings.temp}
    if kind not in roots:
        message = f"found type {kind[:40]!r}, accepted one of {', '.join(roots)}; choose one of these"
        raise ApiError(400, message, "bad_type")
    return roots[kind]


def _with_kind(name: str, kind: str) -> tuple[str, str]:
    """Return name and type of a file, whose name may end in its type: `cat.png [input]`."""
    match = _ANNOTATED.fullmatch(name)
    return (match["name"], match["type"]) if match else (name, kind)


def _subfolder(name: str) -> str:
    """Return a subfolder without the slash that some clients end it with."""
    return name.removesuffix("/") if len(name) > 1 else name


def _wanted(preview: str | None, channel: str) -> tuple[str | None, str]:
    """Return format and channel of a picture encoded anew; one with transparency cannot be JPEG, and becomes WebP."""
    if preview is None or channel not in ("rgba", "a"):
        return preview, channel if channel in ("rgb", "a") else "rgba"
    return f"webp;{preview.rpartition(';')[2]}", "rgba"


def _disposition(name: str) -> str:
    """Return the name for Content-Disposition, as clients of ComfyUI look for it; letters beyond ASCII by RFC 6266."""
    plain = re.sub(r'[^ -~]|["\\\\]', "_", name)
    return f'filename="{plain}"' + ("" if plain == name else f"; filename*=UTF-8''{quote(name, '', errors='replace')}")


async def _decoding(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a function of `pictures` does, called in a thread. Raises ApiError 400 where decoders give up."""
    try:
        return await asyncio.get_running_loop().run_in_executor(_DECODERS, lambda: function(*args, **kwargs))
    except (struct.error, TypeError, LookupError, ArithmeticError, AttributeError, RuntimeError, MemoryError) as error:
        message = f"found a damaged picture ({type(error).__name__}), accepted PNG, JPEG, WebP; take another copy of it"
        raise ApiError(400, message, "bad_picture") from None
