"""Uploading files over ComfyUI's API: what clients see, what hostile ones cannot do, what a full disk leaves behind.

Expected values: `data/comfy-wire/files.json`, recorded from ComfyUI 0.27.1; Pillow as the peer that reads the pictures.
"""

from __future__ import annotations

import asyncio
import errno
import io
import json
from pathlib import Path
from typing import Any

import pytest

from app.server.comfy import files, uploads
from nodes.image_loading import MAX_PIXELS
from tests.server.file_kit import (
    BLUE,
    GOLDEN,
    MASK,
    RED,
    SVG,
    Client,
    bomb,
    left_in,
    opened,
    picture,
    served,
    upload,
    view,
)


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
