"""Uploading and viewing files on a small application, and pictures to do it with."""

from __future__ import annotations

import asyncio
import io
import json
import struct
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import FormData, web
from aiohttp.test_utils import TestClient, TestServer

from app.server import body
from app.server.comfy import files
from app.server.errors import answer_errors
from app.server.keys import SETTINGS
from app.server.security import add_headers, guard
from app.server.settings import ServerSettings

Client = TestClient[web.Request, web.Application]
GOLDEN: dict[str, list[Any]] = json.loads((Path(__file__).parent / "data/comfy-wire/files.json").read_text())


def served(data: Path, act: Callable[[Client], Awaitable[Any]], **more: Any) -> Any:
    """Return what `act` returns, given a client of a real server on a data folder."""
    own = ServerSettings(data, **more)
    own.make_folders()

    async def serve() -> Any:
        app = web.Application(middlewares=[answer_errors, guard(own)], client_max_size=body.MAX_UPLOAD_BYTES)
        app.on_response_prepare.append(add_headers)
        app[SETTINGS] = own
        app.add_routes(files.routes)
        async with TestClient(TestServer(app)) as client:
            return await act(client)

    return asyncio.run(serve())


async def upload(
    client: Client, name: str, data: bytes, path: str = "/upload/image", part: str = "image", **fields: str
) -> tuple[int, Any]:
    """Return status and JSON of an upload; the file comes before the other fields, the harder order."""
    form = FormData(quote_fields=False)
    form.add_field(part, data, filename=name, content_type="image/png")
    for key, value in fields.items():
        form.add_field(key, value)
    async with client.post(path, data=form) as reply:
        return reply.status, await reply.json()


async def view(client: Client, headers: dict[str, str] | None = None, **query: str) -> tuple[int, Any, bytes]:
    """Return status, headers and body of /view."""
    async with client.get("/view", params=query, headers=headers) as reply:
        return reply.status, reply.headers.copy(), await reply.read()


def picture(color: tuple[int, ...], size: tuple[int, int] = (4, 4), kind: str = "PNG") -> bytes:
    """Return a picture of one colour."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGBA" if len(color) == 4 else "RGB", size, color).save(buffer, kind)
    return buffer.getvalue()


def opened(data: bytes) -> Any:
    """Return a picture."""
    from PIL import Image

    return Image.open(io.BytesIO(data))


def bomb(width: int, height: int) -> bytes:
    """Return a PNG of a few bytes that claims a size (PNG specification: chunks IHDR and IDAT)."""
    chunks = [b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT" + zlib.compress(bytes(9))]
    framed = (struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def left_in(data: Path) -> dict[str, bytes]:
    """Return every file in the data folder, hidden ones too."""
    return {path.relative_to(data).as_posix(): path.read_bytes() for path in data.rglob("*") if path.is_file()}


RED, BLUE = picture((255, 0, 0, 128)), picture((0, 0, 255, 255))
MASK = picture((9, 9, 9, 77))
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
