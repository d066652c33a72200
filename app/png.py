"""PNG files that carry the workflow they were made by, and reading it back from ours and ComfyUI's."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from app.graph.errors import WorkflowError
from app.graph.node import Array

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_TEXT_BYTES = 16 * 2**20
"""Longest text that is unpacked: a small file must not fill the memory."""

KEYS = ("workflow", "prompt")
"""Keys under which a workflow may stand; ComfyUI keeps what runs under `prompt`."""

_TEXT_CHUNKS = (b"tEXt", b"zTXt", b"iTXt")


def write_png(path: Path, pixels: Array, document: dict[str, Any] | None) -> None:
    """Write a picture, and the workflow inside of it; equal pixels and documents give equal bytes.

    pixels: uint8 [H, W, 3]. document: None for none. The file appears under its name only when it is whole; missing
    folders are made. Raises OSError.
    """
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    if document is not None:
        info.add_text("workflow", json.dumps(document, separators=(",", ":")))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{uuid4().hex}.part")
    try:
        Image.fromarray(pixels).save(temporary, "PNG", compress_level=1, pnginfo=info)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_workflow(path: Path) -> object:
    """Return the document that a PNG carries, parsed from JSON; the pixels are not decoded.

    Under `workflow` our own document is looked for, an object whose `nodes` is an object too; next comes ComfyUI's
    `prompt`, last the graph of its editor, a `workflow` of another form. Raises WorkflowError when there is none, and
    for a file that is missing, broken or no PNG.
    """
    try:
        with path.open("rb") as file:
            texts = dict(_texts(file, path.name))
    except OSError as error:
        reason = error.strerror or str(error)
        raise WorkflowError.of(f"{path} cannot be read ({reason}); check its name and permissions", "png") from None
    workflow, prompt = (_parsed(texts.get(key)) for key in KEYS)
    ours = isinstance(workflow, dict) and isinstance(workflow.get("nodes"), dict)
    for found in (workflow, prompt) if ours else (prompt, workflow):
        if isinstance(found, dict):
            return found
    message = f"{path.name} carries no workflow; accepted are PNG files that this program or ComfyUI saved"
    raise WorkflowError.of(f"{message}, choose another one or a JSON file", "png")


def _parsed(text: str | None) -> object:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


def _texts(file: BinaryIO, name: str) -> Iterator[tuple[str, str]]:
    """Yield key and text of the text chunks with a known key, wherever they stand in the file."""
    if file.read(len(SIGNATURE)) != SIGNATURE:
        raise WorkflowError.of(f"{name} is not a PNG; choose one that carries a workflow, or a JSON file", "png")
    while True:
        header = _exactly(file, 8, name)
        length, kind = struct.unpack(">I4s", header)
        if kind == b"IEND":
            return
        if kind not in _TEXT_CHUNKS:
            _skip(file, length + 4, name)
            continue
        if length > MAX_TEXT_BYTES:
            raise _too_long(name)
        data = _exactly(file, length, name)
        if zlib.crc32(kind + data) != struct.unpack(">I", _exactly(file, 4, name))[0]:
            raise WorkflowError.of(f"{name} is damaged: a checksum is wrong; take another copy of it", "png")
        key, _, rest = data.partition(b"\0")
        if key.decode("latin-1") in KEYS:
            yield key.decode("latin-1"), _text(kind, rest, name)


def _text(kind: bytes, data: bytes, name: str) -> str:
    """Return the text of a chunk, what follows its key (PNG specification, third edition, section 11.3.3)."""
    if kind == b"tEXt":
        return data.decode("latin-1")
    if kind == b"zTXt":
        return _unpacked(data[1:], name).decode("latin-1")
    is_packed = data[:1] == b"\1"
    *_, text = data[2:].split(b"\0", 2)
    return (_unpacked(text, name) if is_packed else text).decode("utf-8", "replace")


def _unpacked(data: bytes, name: str) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, MAX_TEXT_BYTES)
    except zlib.error:
        raise WorkflowError.of(f"{name} is damaged: a text does not unpack; take another copy of it", "png") from None
    if unpacker.unconsumed_tail:
        raise _too_long(name)
    return text


def _exactly(file: BinaryIO, count: int, name: str) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise _cut_off(name)
    return data


def _skip(file: BinaryIO, count: int, name: str) -> None:
    """Go past a chunk; reading its last byte tells whether it is there."""
    file.seek(count - 1, os.SEEK_CUR)
    _exactly(file, 1, name)


def _cut_off(name: str) -> WorkflowError:
    return WorkflowError.of(f"{name} is cut off: it ends before its end mark; take another copy of it", "png")


def _too_long(name: str) -> WorkflowError:
    limit = MAX_TEXT_BYTES // 2**20
    message = f"{name} holds a text of more than {limit} MiB; a workflow is shorter, choose another file"
    return WorkflowError.of(message, "png")
