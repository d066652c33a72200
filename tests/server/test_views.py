"""Viewing files over ComfyUI's API.

Expected values: `data/comfy-wire/files.json`, recorded from ComfyUI 0.27.1; RFC 9110 (ranges, ETag); Pillow as the peer
that reads the pictures.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.folders import BUNDLED_INPUTS
from tests.server.file_kit import (
    GOLDEN,
    RED,
    SVG,
    Client,
    bomb,
    opened,
    picture,
    served,
    upload,
    view,
)


@pytest.mark.parametrize("recorded", [name for name in GOLDEN if name.startswith("view ")])
def test_views_answer_as_recorded(tmp_path: Path, recorded: str) -> None:
    """Status and headers of each recorded view; SVG is no active content here, and downloads say `attachment`."""
    query = dict(pair.split("=", 1) for pair in recorded.removeprefix("view ").split("&"))
    for name in ("a.png", "m.png", "s/t/a.png"):
        (tmp_path / "input" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "input" / name).write_bytes(RED)
    (tmp_path / "input/x.html").write_bytes(b"<script>1</script>")
    (tmp_path / "input/x.svg").write_bytes(SVG)
    status, headers, data = served(tmp_path, lambda client: view(client, **query))
    expected_status, _, expected = GOLDEN[recorded]
    assert status == expected_status
    is_download = query["filename"] in ("x.html", "x.svg")
    assert headers["Content-Type"] == ("application/octet-stream" if is_download else expected["Content-Type"])
    mark = "attachment; " if is_download else ""
    assert headers["Content-Disposition"] == mark + expected["Content-Disposition"]
    assert [name for name in expected if name not in headers] == []
    assert len(data) > 0


@pytest.mark.parametrize(
    ("name", "content_type"),
    [
        ("a.PNG", "image/png"),
        ("a.jpeg", "image/jpeg"),
        ("a.webp", "image/webp"),
        ("a.gif", "image/gif"),
        ("a.bmp", "image/bmp"),
        ("a.wav", "audio/wav"),
        ("a.mp3", "audio/mpeg"),
        ("a.ogg", "audio/ogg"),
        ("a.flac", "audio/flac"),
        ("a.mp4", "video/mp4"),
        ("a.webm", "video/webm"),
        ("a.txt", "text/plain; charset=utf-8"),
        ("a.json", "application/json; charset=utf-8"),
    ]
    + [
        (f"a{suffix}", None)
        for suffix in (
            *(".html", ".HTM", ".xhtml", ".xht", ".shtml", ".mhtml", ".js", ".mjs", ".css", ".svg", ".SVGZ", ".xml"),
            *(".xsl", ".rss", ".pdf", ".swf", ".wasm", ".bin", ".png.html", ""),
        )
    ]
    + [(".png", None)],
)
def test_only_passive_files_are_shown_in_place(tmp_path: Path, name: str, content_type: str | None) -> None:
    """Whatever is in it: the type follows the name alone, is never guessed, and a sandbox surrounds it all the same."""
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / name).write_bytes(SVG)
    status, headers, data = served(tmp_path, lambda client: view(client, filename=name))
    assert (status, data) == (200, SVG)
    assert headers["Content-Type"] == (content_type or "application/octet-stream")
    assert headers["Content-Disposition"].startswith("attachment;") is (content_type is None)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in headers["Content-Security-Policy"]
    assert "script-src" not in headers["Content-Security-Policy"]
    assert "default-src 'none'" in headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({}, 400),
        ({"filename": ""}, 400),
        ({"filename": "../input/a.png"}, 400),
        ({"filename": "/etc/passwd"}, 400),
        ({"filename": "a\0.png"}, 400),
        ({"filename": "..\\a.png"}, 400),
        ({"filename": "%2e%2e%2finput%2fa.png"}, 404),
        ({"filename": "a.png", "subfolder": ".."}, 403),
        ({"filename": "a.png", "subfolder": "../input"}, 403),
        ({"filename": "a.png", "subfolder": "/"}, 403),
        ({"filename": "a.png", "subfolder": "/etc"}, 403),
        ({"filename": "a.png", "subfolder": "link"}, 403),
        ({"filename": "link.png"}, 403),
        ({"filename": "a.png", "type": "bogus"}, 400),
        ({"filename": "a.png", "type": "user"}, 400),
        ({"filename": "a.png [input]", "type": "bogus"}, 200),
        ({"filename": "a.png [user]"}, 404),
        ({"filename": "a.png", "type": "input"}, 200),
        ({"filename": "a.png", "type": "input", "subfolder": "s/"}, 404),
        ({"filename": "a.png", "type": "output"}, 404),
        ({"filename": "s", "type": "output"}, 404),
        ({"filename": "text.txt", "preview": "webp"}, 400),
        ({"filename": "bomb.png", "preview": "webp"}, 400),
        ({"filename": "bomb.png", "channel": "a"}, 400),
        ({"filename": "cut.png", "preview": "webp"}, 400),
    ],
)
def test_views_stay_in_their_folder(tmp_path: Path, query: dict[str, str], status: int) -> None:
    """The statuses of ComfyUI: 400 for a bad name or type, 403 for a subfolder outside, 404 for what is not there."""
    for folder in ("input", "output/s", "secret"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "input/a.png").write_bytes(RED)
    (tmp_path / "secret/a.png").write_bytes(RED)
    (tmp_path / "output/link").symlink_to(tmp_path / "secret")
    (tmp_path / "output/link.png").symlink_to(tmp_path / "secret/a.png")
    (tmp_path / "output/text.txt").write_text("hello")
    (tmp_path / "output/bomb.png").write_bytes(bomb(50_000, 50_000))
    (tmp_path / "output/cut.png").write_bytes(picture((1, 2, 3), (64, 64))[:-30])
    code, _, data = served(tmp_path, lambda client: view(client, **query))
    assert code == status
    if status >= 400:
        message = json.loads(data)["errors"][0]["message"]
        assert "accepted" in message
        assert str(tmp_path) not in message


def test_bundled_inputs_are_inputs(tmp_path: Path) -> None:
    """What the templates load is shown from where it lies; a user's file of that name comes first."""
    bundled = next(path for path in sorted(BUNDLED_INPUTS.iterdir()) if path.suffix == ".png")

    async def act(client: Client) -> list[bytes]:
        before = await view(client, filename=bundled.name, type="input")
        await upload(client, bundled.name, RED)
        after = await view(client, filename=bundled.name, type="input")
        return [before[2], after[2], (await view(client, filename=bundled.name, type="output"))[0]]

    assert served(tmp_path, act) == [bundled.read_bytes(), RED, 404]


def test_files_are_sent_in_ranges_and_only_when_changed(tmp_path: Path) -> None:
    """RFC 9110: 206 with the bytes asked for, 304 for a known ETag, 416 beyond the end; 200 anew after a change."""

    async def act(client: Client) -> None:
        await upload(client, "a.png", RED)
        _, headers, _ = await view(client, filename="a.png", type="input")
        status, answered, data = await view(client, {"Range": "bytes=1-3"}, filename="a.png", type="input")
        assert (status, data, answered["Content-Range"]) == (206, b"PNG", f"bytes 1-3/{len(RED)}")
        assert (await view(client, {"Range": "bytes=9999-"}, filename="a.png", type="input"))[0] == 416
        known = {"If-None-Match": headers["ETag"]}
        assert (await view(client, known, filename="a.png", type="input"))[0] == 304
        await upload(client, "a.png", picture((1, 2, 3, 4), (5, 5)), overwrite="1")
        assert (await view(client, known, filename="a.png", type="input"))[0] == 200

    served(tmp_path, act)


def test_a_name_beyond_ascii_is_sent_whole(tmp_path: Path) -> None:
    """RFC 6266: `filename*` has the name, `filename` what old clients can read."""

    async def act(client: Client) -> str:
        await upload(client, "k\u00e4tz\u6f22.png", RED)
        return str((await view(client, filename="k\u00e4tz\u6f22.png", type="input"))[1]["Content-Disposition"])

    assert served(tmp_path, act) == "filename=\"k_tz_.png\"; filename*=UTF-8''k%C3%A4tz%E6%BC%A2.png"


@pytest.mark.parametrize(
    ("query", "kind", "mode"),
    [
        ({"preview": "webp"}, "WEBP", "RGBA"),
        ({"preview": "webp;10"}, "WEBP", "RGBA"),
        ({"preview": "jpeg"}, "JPEG", "RGB"),
        ({"preview": "jpeg;50"}, "JPEG", "RGB"),
        ({"preview": "jpeg;0"}, "JPEG", "RGB"),
        ({"preview": "jpeg;100000000000000000000"}, "JPEG", "RGB"),
        ({"preview": "jpeg;\u00b2"}, "JPEG", "RGB"),
        ({"preview": "jpeg;-1"}, "JPEG", "RGB"),
        ({"preview": "tiff;20"}, "WEBP", "RGBA"),
        ({"preview": ""}, "WEBP", "RGBA"),
        ({"preview": "jpeg", "channel": "rgba"}, "WEBP", "RGBA"),
        ({"preview": "webp", "channel": "rgb"}, "WEBP", "RGB"),
        ({"channel": "rgb"}, "PNG", "RGB"),
        ({"channel": "a"}, "PNG", "RGBA"),
        ({"channel": "rgba"}, "PNG", "RGBA"),
        ({"channel": "bogus"}, "PNG", "RGBA"),
    ],
)
def test_pictures_are_encoded_anew(tmp_path: Path, query: dict[str, str], kind: str, mode: str) -> None:
    """Formats and channels as ComfyUI takes them: unknown formats and `rgba` are WebP, `a` is alpha over black."""

    async def act(client: Client) -> tuple[int, Any, bytes]:
        await upload(client, "a.png", RED)
        return await view(client, filename="a.png", type="input", **query)

    status, headers, data = served(tmp_path, act)
    assert status == 200
    result = opened(data)
    assert (result.format, result.mode, result.size) == (kind, mode, (4, 4))
    assert headers["Content-Type"] == f"image/{kind.lower()}"
    red, green, blue, alpha = result.convert("RGBA").getpixel((1, 1))
    if query.get("channel") == "a":
        assert (red, green, blue, alpha) == (0, 0, 0, 128)
    else:
        assert (red > 200, green < 60, blue < 60) == (True, True, True)  # lossy
        assert alpha == (128 if mode == "RGBA" else 255)
