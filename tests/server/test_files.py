"""Files over ComfyUI's API: what its clients see, what hostile ones cannot do, what a full disk leaves behind.

Expected values: `data/comfy-wire/files.json`, recorded from ComfyUI 0.27.1; RFC 9110 (ranges, ETag); Pillow as the peer
that reads the pictures.
"""

from __future__ import annotations

import asyncio
import errno
import io
import json
import struct
import zlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import FormData, MultipartWriter, web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from app.folders import BUNDLED_INPUTS
from app.server import body
from app.server.comfy import files, uploads
from app.server.errors import answer_errors
from app.server.keys import SETTINGS
from app.server.security import add_headers, guard
from app.server.settings import ServerSettings
from nodes.image_loading import MAX_PIXELS

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


def test_uploads_answer_as_recorded(tmp_path: Path) -> None:
    """Status and JSON of each recorded upload; only the unknown type is 400 here, where ComfyUI fails with 500."""

    async def act(client: Client) -> dict[str, tuple[int, Any]]:
        reference = json.dumps({"filename": "a.png", "type": "input", "subfolder": ""})
        return {
            "up1": await upload(client, "a.png", RED),
            "up_dup_same": await upload(client, "a.png", RED),
            "up_dup_diff": await upload(client, "a.png", BLUE),
            "up_overwrite": await upload(client, "a.png", BLUE, overwrite="true"),
            "up_sub": await upload(client, "a.png", RED, subfolder="s/t"),
            "up_temp": await upload(client, "a.png", RED, type="temp"),
            "up_badtype": await upload(client, "a.png", RED, type="bogus"),
            "up_traversal_sub": await upload(client, "a.png", RED, subfolder="../x"),
            "up_traversal_name": await upload(client, "../x.png", RED),
            "up_html": await upload(client, "x.html", b"<script>1</script>"),
            "up_svg": await upload(client, "x.svg", SVG),
            "up_wrongfield": await upload(client, "a.png", RED, part="file"),
            "mask": await upload(client, "m.png", MASK, "/upload/mask", original_ref=reference),
        }

    answers = served(tmp_path, act)
    recorded = {name: entry for name, entry in GOLDEN.items() if not name.startswith("view")}
    assert set(answers) == set(recorded)
    for name, (status, answer) in answers.items():
        assert status == (400 if name == "up_badtype" else recorded[name][0]), name
        if status == 200:
            assert answer == recorded[name][1], name
        else:
            assert "accepted" in answer["errors"][0]["message"], name
    assert left_in(tmp_path / "input").keys() == {"a.png", "a (1).png", "s/t/a.png", "x.html", "x.svg", "m.png"}
    assert left_in(tmp_path / "temp").keys() == {"a.png"}
    assert (tmp_path / "input/a.png").read_bytes() == BLUE


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


def test_a_mask_becomes_the_alpha_of_its_original(tmp_path: Path) -> None:
    """Colours of the original, alpha of the mask, exactly: PNG is lossless."""

    async def act(client: Client) -> list[tuple[int, Any]]:
        await upload(client, "a.png", BLUE)
        plain = json.dumps({"filename": "a.png", "type": "input"})
        marked = json.dumps({"filename": "a.png [input]"})
        return [
            await upload(client, "m.png", MASK, "/upload/mask", original_ref=plain),
            await upload(client, "m.png", MASK, "/upload/mask", original_ref=marked),
        ]

    expected = {"name": "m.png", "subfolder": "", "type": "input"}
    assert served(tmp_path, act) == [(200, expected), (200, expected)]
    result = opened((tmp_path / "input/m.png").read_bytes())
    assert (result.format, result.mode) == ("PNG", "RGBA")
    assert result.getcolors() == [(16, (0, 0, 255, 77))]


@pytest.mark.parametrize(
    ("name", "data", "reference", "status"),
    [
        ("m.png", MASK, None, 400),
        ("m.png", MASK, "no JSON", 400),
        ("m.png", MASK, "[" * 50_000, 400),
        ("m.png", MASK, "[]", 400),
        ("m.png", MASK, "{}", 400),
        ("m.png", MASK, '{"filename": 5}', 400),
        ("m.png", MASK, '{"filename": "a.png", "type": 5}', 400),
        ("m.png", MASK, '{"filename": "a.png", "subfolder": ["s"], "type": "input"}', 400),
        ("m.png", MASK, '{"filename": "../a.png", "type": "input"}', 400),
        ("m.png", MASK, '{"filename": "\\ud800", "type": "input"}', 400),
        ("m.png", MASK, '{"filename": "a.png", "type": "input", "subfolder": "../.."}', 403),
        ("m.png", MASK, '{"filename": "none.png", "type": "input"}', 404),
        ("m.png", MASK, '{"filename": "a.png"}', 404),
        ("m.png", b"no picture", '{"filename": "a.png", "type": "input"}', 400),
        ("m.png", MASK, '{"filename": "text.txt", "type": "input"}', 400),
        ("m.jpg", MASK, '{"filename": "a.png", "type": "input"}', 400),
    ],
)
def test_a_mask_without_its_original_is_refused(
    tmp_path: Path, name: str, data: bytes, reference: str | None, status: int
) -> None:
    """ComfyUI answers 500 to most of these, or 200 without a file. The type of an original is output unless told."""
    (tmp_path / "input").mkdir()
    (tmp_path / "input/a.png").write_bytes(BLUE)
    (tmp_path / "input/text.txt").write_text("hello")
    before = left_in(tmp_path)
    fields = {} if reference is None else {"original_ref": reference}
    code, answer = served(tmp_path, lambda client: upload(client, name, data, "/upload/mask", **fields))
    assert (code, "accepted" in answer["errors"][0]["message"]) == (status, True)
    assert left_in(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("..", {}),
        ("C:\\x.png", {}),
        ("a\\b.png", {}),
        ("con.png", {}),
        ("x" * 300 + ".png", {}),
        (".upload.part", {}),
        ("a.png", {"subfolder": "/etc"}),
        ("a.png", {"subfolder": "s/../../x"}),
        ("a.png", {"subfolder": "link"}),
        ("a.png", {"subfolder": "d/" * 600}),
        ("a.png", {"type": "../input"}),
        ("a.png", {"note": "x" * 100_000}),
        ("bomb.png", {}),
        ("huge.png", {}),
        ("bomb.txt", {}),
    ],
)
def test_uploads_that_lead_astray_are_refused(tmp_path: Path, name: str, fields: dict[str, str]) -> None:
    """Names, subfolders and links that lead outside, and small files that claim more pixels than are ever decoded."""
    for folder in ("input", "secret"):
        (tmp_path / folder).mkdir()
    (tmp_path / "input/link").symlink_to(tmp_path / "secret")
    data = {"bomb.png": bomb(MAX_PIXELS, 2), "bomb.txt": bomb(50_000, 50_000), "huge.png": bomb(2**31 - 1, 2**31 - 1)}
    code, answer = served(tmp_path, lambda client: upload(client, name, data.get(name, RED), **fields))
    assert code == 400
    assert "found" in answer["errors"][0]["message"]
    assert left_in(tmp_path) == {}


def test_a_name_with_a_folder_is_told_as_views_take_it(tmp_path: Path) -> None:
    """Upload and view agree: what the upload answers is what the view is asked for. A slash at the end is no matter."""

    async def act(client: Client) -> tuple[Any, int]:
        _, answer = await upload(client, "t/a.png", RED, subfolder="s/")
        query = {"filename": answer["name"], "subfolder": answer["subfolder"], "type": answer["type"]}
        return answer, (await view(client, **query))[0]

    assert served(tmp_path, act) == ({"name": "a.png", "subfolder": "s/t", "type": "input"}, 200)


def test_uploads_at_the_same_time_keep_every_file(tmp_path: Path) -> None:
    """Twenty different files of one name: twenty names, none lost; the same bytes once more add none."""
    contents = [picture((number, 0, 0)) for number in range(20)]

    async def act(client: Client) -> list[tuple[int, Any]]:
        return list(await asyncio.gather(*(upload(client, "a.png", data) for data in contents + contents[:5])))

    answers = served(tmp_path, act)
    assert {status for status, _ in answers} == {200}
    names = {"a.png"} | {f"a ({number}).png" for number in range(1, 20)}
    assert {answer["name"] for _, answer in answers} == names
    stored = left_in(tmp_path / "input")
    assert stored.keys() == names
    assert sorted(stored.values()) == sorted(contents)
    assert [stored[answer["name"]] for _, answer in answers] == contents + contents[:5]


def test_a_folder_of_that_name_is_left_alone(tmp_path: Path) -> None:
    """Beside it with a number; not in its place, even when told to overwrite."""
    (tmp_path / "input/a.png").mkdir(parents=True)

    async def act(client: Client) -> list[tuple[int, Any]]:
        return [await upload(client, "a.png", RED), await upload(client, "a.png", RED, overwrite="true")]

    (status, answer), (refused, _) = served(tmp_path, act)
    assert (status, answer["name"], refused) == (200, "a (1).png", 409)
    assert left_in(tmp_path).keys() == {"input/a (1).png"}


def test_more_than_the_limit_is_refused_while_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """413, with and without a length told beforehand, and nothing is left."""
    monkeypatch.setattr(files, "MAX_UPLOAD_BYTES", 10_000)
    monkeypatch.setattr(uploads, "MAX_UPLOAD_BYTES", 10_000)

    async def chunks() -> Any:
        yield b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.bin"\r\n\r\n'
        for _ in range(100):
            yield bytes(1000)
        yield b"\r\n--x--\r\n"

    async def act(client: Client) -> list[int]:
        told, _ = await upload(client, "a.bin", bytes(20_000))
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        async with client.post("/upload/image", data=chunks(), headers=headers) as reply:
            return [told, reply.status]

    assert served(tmp_path, act) == [413, 413]
    assert left_in(tmp_path) == {}


@pytest.mark.parametrize("where", ["write", "replace", "mkdir"])
@pytest.mark.parametrize("path", ["/upload/image", "/upload/mask"])
def test_a_full_disk_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, where: str
) -> None:
    """507, faked at the file layer: while the bytes come, while the folder is made, while the name is given."""
    full = OSError(errno.ENOSPC, "No space left on device")

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise full

    class FullFile(io.FileIO):
        """A file on a full disk."""

        def write(self, data: Any) -> int:
            """Refuse."""
            raise full

    (tmp_path / "input").mkdir()
    (tmp_path / "input/a.png").write_bytes(BLUE)
    before = left_in(tmp_path)
    original_open = Path.open

    async def act(client: Client) -> tuple[int, Any]:
        if where == "replace":
            monkeypatch.setattr(uploads.os, "replace", refuse)
        elif where == "mkdir":
            monkeypatch.setattr(Path, "mkdir", refuse)
        else:
            monkeypatch.setattr(
                Path,
                "open",
                lambda file, mode="r", *more, **named: (
                    FullFile(file, mode) if "w" in mode else original_open(file, mode, *more, **named)
                ),
            )
        reference = json.dumps({"filename": "a.png", "type": "input"})
        return await upload(client, "new.png", MASK, path, subfolder="s", original_ref=reference)

    code, answer = served(tmp_path, act)
    monkeypatch.undo()
    assert code == 507
    message = answer["errors"][0]["message"]
    assert "No space left on device" in message
    assert "free" in message
    assert str(tmp_path) not in message
    assert left_in(tmp_path) == before


FORM = "multipart/form-data; boundary=x"
PART = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.bin"\r\n'


@pytest.mark.parametrize(
    ("content_type", "data"),
    [
        (None, b""),
        ("application/json", b"{}"),
        ("application/x-www-form-urlencoded", b"image=a"),
        ("multipart/form-data", PART),
        ("multipart/form-data; boundary=", PART),
        ("multipart/form-data; boundary=" + "y" * 80, PART),
        (FORM, b""),
        (FORM, b"nothing of the kind"),
        (FORM, b"--x--\r\n"),
        (FORM, PART),
        (FORM, PART + b"\r\nabc"),
        (FORM, PART + b"\r\nabc\r\n--x"),
        (FORM, PART + b"no header\r\n\r\nabc\r\n--x--\r\n"),
        (FORM, PART + b"A: b\r\n" * 1000 + b"\r\nabc\r\n--x--\r\n"),
        (FORM, PART + b"A: " + b"b" * 100_000 + b"\r\n\r\nabc\r\n--x--\r\n"),
        (FORM, PART + b"Content-Encoding: gzip\r\n\r\nabc\r\n--x--\r\n"),
        (FORM, PART + b"Content-Transfer-Encoding: base64\r\n\r\nYWJj\r\n--x--\r\n"),
        (FORM, PART + b"Content-Type: multipart/mixed; boundary=y\r\n\r\n--y\r\n\r\nabc\r\n--y--\r\n--x--\r\n"),
        (FORM, PART + b"Content-Type: multipart/mixed\r\n\r\nabc\r\n--x--\r\n"),
        (FORM, b'--x\r\nContent-Disposition: form-data; name="image"\r\n\r\nabc\r\n--x--\r\n'),
        (FORM, b'--x\r\nContent-Disposition: form-data; name="image"; filename=""\r\n\r\nabc\r\n--x--\r\n'),
        (FORM, b"--x\r\nContent-Disposition: \xff\xfe\r\n\r\nabc\r\n--x--\r\n"),
    ],
)
@pytest.mark.filterwarnings("ignore::aiohttp.BadContentDispositionHeader")
@pytest.mark.parametrize("path", ["/upload/image", "/upload/mask"])
def test_forms_that_are_none_are_refused(tmp_path: Path, path: str, content_type: str | None, data: bytes) -> None:
    """400 with a sentence, whatever is wrong with the form (RFC 7578), and nothing is left."""

    async def act(client: Client) -> tuple[int, Any]:
        headers = {} if content_type is None else {"Content-Type": content_type}
        skipped = ["Content-Type"] if content_type is None else []
        async with client.post(path, data=data, headers=headers, skip_auto_headers=skipped) as reply:
            return reply.status, await reply.json()

    code, answer = served(tmp_path, act)
    assert code == 400
    assert "accepted" in answer["errors"][0]["message"]
    assert left_in(tmp_path) == {}


def test_a_client_that_vanishes_leaves_nothing(tmp_path: Path) -> None:
    """The connection ends within the file: what came so far is deleted."""

    async def act(client: Client) -> None:
        server = client.server
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = (
            f"POST /upload/image HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM}\r\nContent-Length: 900000\r\n\r\n"
        )
        writer.write(head.encode() + PART + b"\r\n" + bytes(300_000))
        await writer.drain()
        for _ in range(100):
            if left_in(tmp_path):
                break
            await asyncio.sleep(0.02)
        assert left_in(tmp_path)
        writer.close()
        for _ in range(100):
            if not left_in(tmp_path):
                break
            await asyncio.sleep(0.02)

    served(tmp_path, act)
    assert left_in(tmp_path) == {}


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, asyncio.Runner, Client]]:
    """A server that stays up for all of hypothesis' examples."""
    data = tmp_path_factory.mktemp("fuzzed") / "data"
    own = ServerSettings(data)
    own.make_folders()
    (own.input / "a.png").write_bytes(RED)

    async def start() -> Client:
        app = web.Application(middlewares=[answer_errors, guard(own)])
        app[SETTINGS] = own
        app.add_routes(files.routes)
        client = TestClient(TestServer(app))
        await client.start_server()
        return client

    with asyncio.Runner() as runner:
        client = runner.run(start())
        yield data, runner, client
        runner.run(client.close())


ODD = st.sampled_from(
    ["..", "/", "\\", "%2e", "\0", "a.png", " [input]", "input", "temp", ":", "~", "\u6f22", "CON", ";"]
)
NAMES = st.lists(ODD | st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=5).map("".join)


@settings(max_examples=150, deadline=None)
@given(query=st.dictionaries(st.sampled_from(["filename", "subfolder", "type", "preview", "channel"]), NAMES))
def test_no_view_fails_or_leaves_its_folder(fuzzed: tuple[Path, asyncio.Runner, Client], query: dict[str, str]) -> None:
    """200 only for a.png, the one file there is; else 400, 403 or 404 with a sentence."""
    _, runner, client = fuzzed
    status, _, data = runner.run(view(client, **query))
    assert status in (200, 400, 403, 404)
    assert "a.png" in query.get("filename", "") if status == 200 else json.loads(data)["errors"][0]["message"]


@settings(max_examples=150, deadline=None)
@given(
    name=NAMES,
    fields=st.dictionaries(st.sampled_from(["subfolder", "type", "overwrite", "original_ref"]), NAMES),
    path=st.sampled_from(["/upload/image", "/upload/mask"]),
)
def test_no_upload_fails_or_leaves_its_folder(
    fuzzed: tuple[Path, asyncio.Runner, Client], name: str, fields: dict[str, str], path: str
) -> None:
    """What is answered with 200 can be viewed; whatever is answered, nothing lies outside of input, output and temp."""
    data, runner, client = fuzzed

    async def act() -> None:
        with MultipartWriter("form-data") as form:
            part = form.append(MASK)
            part.set_content_disposition("form-data", name="image", filename=name)
            for key, value in fields.items():
                form.append(value).set_content_disposition("form-data", name=key)
        async with client.post(path, data=form) as reply:
            answer = await reply.json()
            assert reply.status in (200, 400, 403, 404, 409), answer
        if reply.status == 200:
            query = {"filename": answer["name"], "subfolder": answer["subfolder"], "type": answer["type"]}
            assert (await view(client, **query))[0] == 200

    runner.run(act())
    assert {name.split("/")[0] for name in left_in(data)} <= {"input", "output", "temp"}
    assert [name for name in left_in(data.parent) if not name.startswith("data/")] == []
    assert [name for name in left_in(data) if name.endswith(".part")] == []
