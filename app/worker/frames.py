"""Messages between server and worker: a JSON header and bytes beside it, with their lengths in front."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Iterable
from typing import Any, BinaryIO

_LENGTHS = struct.Struct("<II")
MAX_HEADER_BYTES = 256 << 20
MAX_BLOB_BYTES = 256 << 20


class FrameError(Exception):
    """What came in is no frame of ours: the other side is not what it should be."""


def pack(header: dict[str, Any], blobs: Iterable[bytes] = ()) -> bytes:
    """Return a frame. A header refers to bytes by `"blob": [offset, length]`."""
    text = json.dumps(header, separators=(",", ":")).encode()
    blob = b"".join(blobs)
    return _LENGTHS.pack(len(text), len(blob)) + text + blob


def read(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """Return the next header and bytes, or None when the other side has closed. Raises FrameError."""
    lengths = _exactly(stream, _LENGTHS.size)
    if lengths is None:
        return None
    header_bytes, blob_bytes = _checked(lengths)
    header, blob = _exactly(stream, header_bytes), _exactly(stream, blob_bytes)
    if header is None or blob is None:
        return None
    return _parsed(header), blob


async def read_async(stream: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    """Return the next header and bytes. Raises asyncio.IncompleteReadError at the end, and FrameError."""
    header_bytes, blob_bytes = _checked(await stream.readexactly(_LENGTHS.size))
    header = await stream.readexactly(header_bytes)
    blob = await stream.readexactly(blob_bytes) if blob_bytes else b""
    return _parsed(header), blob


def _checked(lengths: bytes) -> tuple[int, int]:
    header_bytes, blob_bytes = _LENGTHS.unpack(lengths)
    if header_bytes > MAX_HEADER_BYTES or blob_bytes > MAX_BLOB_BYTES:
        raise FrameError(f"a frame claims {header_bytes} + {blob_bytes} bytes")
    return header_bytes, blob_bytes


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except ValueError as error:
        raise FrameError("a frame's header is no JSON") from error
    if not isinstance(header, dict):
        raise FrameError("a frame's header is no object")
    return header


def _exactly(stream: BinaryIO, count: int) -> bytes | None:
    data = stream.read(count) if count else b""
    return data if len(data) == count else None
