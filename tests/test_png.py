"""Pictures that carry workflows, with Pillow as the peer that writes and reads them too."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from app.graph.errors import WorkflowError
from app.png import MAX_TEXT_BYTES, SIGNATURE, read_workflow, write_png

PIXELS = np.random.default_rng(1).integers(0, 256, (5, 7, 3), np.uint8)
DOCUMENT: dict[str, Any] = {"version": 1, "nodes": {"b": {"class_type": "Grüße", "inputs": {}}, "a": {}}}
PROMPT = {"3": {"class_type": "KSampler", "inputs": {}}}
EDITOR: dict[str, Any] = {"nodes": [], "links": []}


def png_with(path: Path, **texts: str) -> Path:
    info = PngInfo()
    for key, text in texts.items():
        info.add_text(key, text)
    Image.fromarray(PIXELS).save(path, pnginfo=info)
    return path


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def test_pixels_and_document_come_back(tmp_path: Path) -> None:
    """Pillow reads the same pixels and text; our own reader the same document, its order kept."""
    path = tmp_path / "new" / "folder" / "a.png"
    write_png(path, PIXELS, DOCUMENT)
    with Image.open(path) as image:
        assert np.array_equal(np.asarray(image), PIXELS)
        assert json.loads(image.info["workflow"]) == DOCUMENT
    read = read_workflow(path)
    assert read == DOCUMENT
    assert isinstance(read, dict)
    assert list(read["nodes"]) == ["b", "a"]
    assert [entry.name for entry in path.parent.iterdir()] == ["a.png"]


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    write_png(tmp_path / "a.png", PIXELS, DOCUMENT)
    write_png(tmp_path / "b.png", PIXELS, DOCUMENT)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.png").mkdir()
    with pytest.raises(OSError, match=r"a\.png"):
        write_png(tmp_path / "a.png", PIXELS, DOCUMENT)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"workflow": DOCUMENT}, DOCUMENT),
        ({"prompt": PROMPT}, PROMPT),
        ({"workflow": EDITOR, "prompt": PROMPT}, PROMPT),
        ({"workflow": DOCUMENT, "prompt": PROMPT}, DOCUMENT),
        ({"workflow": EDITOR}, EDITOR),
    ],
)
def test_our_document_goes_before_comfyui(tmp_path: Path, texts: dict[str, Any], expected: Any) -> None:
    path = png_with(tmp_path / "a.png", **{key: json.dumps(value) for key, value in texts.items()})
    assert read_workflow(path) == expected


@pytest.mark.parametrize("kind", ["tEXt", "zTXt", "iTXt", "packed iTXt"])
@pytest.mark.parametrize("where", ["before", "after"])
def test_every_kind_of_text_chunk_is_read_before_and_after_the_pixels(tmp_path: Path, kind: str, where: str) -> None:
    """Layouts as in the PNG specification, third edition, section 11.3.3."""
    text = json.dumps(DOCUMENT).encode()
    data = {
        "tEXt": b"workflow\0" + text,
        "zTXt": b"workflow\0\0" + zlib.compress(text),
        "iTXt": b"workflow\0\0\0en\0title\0" + text,
        "packed iTXt": b"workflow\0\1\0\0\0" + zlib.compress(text),
    }[kind]
    plain = png_with(tmp_path / "a.png").read_bytes()
    at = 33 if where == "before" else len(plain) - 12
    path = tmp_path / "b.png"
    path.write_bytes(plain[:at] + chunk(kind[-4:].encode(), data) + plain[at:])
    assert read_workflow(path) == DOCUMENT


def test_files_without_a_workflow_give_one_sentence(tmp_path: Path) -> None:
    plain = png_with(tmp_path / "a.png").read_bytes()
    whole = png_with(tmp_path / "b.png", workflow=json.dumps(DOCUMENT)).read_bytes()
    bomb = chunk(b"zTXt", b"workflow\0\0" + zlib.compress(bytes(MAX_TEXT_BYTES + 1)))
    damaged = whole.replace(b"version", b"vision!")
    cases = {
        "carries no workflow": plain,
        "is not a PNG": b"GIF89a" + plain,
        "is cut off": whole[:60],
        "a checksum is wrong": damaged,
        "16 MiB": SIGNATURE + bomb + chunk(b"IEND", b""),
        "does not unpack": SIGNATURE + chunk(b"zTXt", b"workflow\0\0junk") + chunk(b"IEND", b""),
    }
    for sentence, data in cases.items():
        path = tmp_path / "case.png"
        path.write_bytes(data)
        with pytest.raises(WorkflowError, match=sentence) as caught:
            read_workflow(path)
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("cut", range(0, 150, 7))
def test_every_cut_is_told(tmp_path: Path, cut: int) -> None:
    path = png_with(tmp_path / "a.png")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(WorkflowError, match=r"cut off|not a PNG"):
        read_workflow(path)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(WorkflowError, match="cannot be read"):
        read_workflow(tmp_path / "none.png")
