"""Receiving files: streamed to a temporary file, then put in place whole."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import uuid
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from aiohttp import BodyPartReader

from app.server.body import MAX_UPLOAD_BYTES
from app.server.errors import ApiError
from app.server.user_files import unwritable

_CHUNK_BYTES = 1 << 18
_MAX_FIELD_BYTES = 1 << 16
_MAX_FIELDS = 20


@dataclass(slots=True)
class Received:
    """An upload. name: as the client calls the file. file: a temporary one with its bytes. fields: the other parts."""

    name: str
    file: Path
    fields: dict[str, str] = field(default_factory=dict)


async def receive(parts: AsyncIterable[BodyPartReader], folder: Path) -> Received:
    """Read a form with one file, named `image`, into a temporary file. Raises ApiError 400, 413 and 507."""
    received = Received("", folder / f"upload-{uuid.uuid4().hex}.part")
    try:
        async for part in parts:
            if part.name == "image" and not received.name:
                if not part.filename:
                    raise ApiError(400, "found a file without a name, accepted one with a name; give it", "bad_upload")
                received.name = part.filename
                await _stream(part, received.file)
            elif part.name and len(received.fields) < _MAX_FIELDS:
                received.fields[part.name] = await _text(part)
        if not received.name:
            raise ApiError(400, "found no file, accepted one in the form's part `image`; send it so", "bad_upload")
    except BaseException:
        received.file.unlink(missing_ok=True)
        raise
    return received


def place(file: Path, target: Path, overwrites: bool) -> Path:
    """Move a received file to its place; beside another of that name it becomes `name (1).png`, unless it is the same.

    Raises OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if not overwrites:
        for number in count(1):
            if not target.exists():
                break
            if target.is_file() and _is_same(file, target):
                return target
            stem = target.stem if number == 1 else target.stem.rpartition(" (")[0]
            target = target.with_name(f"{stem} ({number}){target.suffix}")
    _move(file, target)
    return target


def _move(file: Path, target: Path) -> None:
    """Put a file in place whole, on another file system too."""
    try:
        os.replace(file, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        beside = target.with_name(f".{uuid.uuid4().hex}.part")
        try:
            shutil.copyfile(file, beside)
            os.replace(beside, target)
        finally:
            beside.unlink(missing_ok=True)


async def _stream(part: BodyPartReader, file: Path) -> None:
    size = 0
    try:
        with file.open("wb") as target:
            while chunk := await part.read_chunk(_CHUNK_BYTES):
                size += len(chunk)
                if size > MAX_UPLOAD_BYTES:
                    limit = MAX_UPLOAD_BYTES >> 20
                    raise ApiError(413, f"found a file of more than {limit} MiB; send a smaller one", "too_large")
                await asyncio.to_thread(target.write, chunk)
    except OSError as error:
        raise unwritable(error, part.filename or file.name) from None


async def _text(part: BodyPartReader) -> str:
    data = b""
    while chunk := await part.read_chunk(_CHUNK_BYTES):
        data += chunk
        if len(data) > _MAX_FIELD_BYTES:
            raise ApiError(400, f"found a part {str(part.name)[:40]!r} that is too long; send less", "bad_upload")
    return data.decode("utf-8", "replace")


def _is_same(one: Path, other: Path) -> bool:
    if one.stat().st_size != other.stat().st_size:
        return False
    with one.open("rb") as first, other.open("rb") as second:
        while chunk := first.read(_CHUNK_BYTES):
            if chunk != second.read(_CHUNK_BYTES):
                return False
    return True
