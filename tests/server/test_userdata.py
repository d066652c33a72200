"""What clients keep over ComfyUI's API. Expected values: the routes of ComfyUI 0.27.1, its /users, /settings, /userdata
and /v2/userdata; every empty answer of it is {} here. What was stored comes back byte for byte."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from app.server.comfy import userdata
from app.server.errors import answer_errors
from app.server.keys import SETTINGS
from app.server.security import guard
from app.server.settings import ServerSettings

Client = TestClient[web.Request, web.Application]


def served(data: Path, act: Callable[[Client], Awaitable[Any]]) -> Any:
    """Return what `act` returns, given a client of a real server on a data folder."""
    own = ServerSettings(data)
    own.make_folders()

    async def serve() -> Any:
        app = web.Application(middlewares=[answer_errors, guard(own)])
        app[SETTINGS], app[userdata.SETTINGS_LOCK] = own, asyncio.Lock()
        app.add_routes(userdata.routes)
        async with TestClient(TestServer(app)) as client:
            return await act(client)

    return asyncio.run(serve())


async def call(client: Client, method: str, path: str, data: bytes | None = None) -> tuple[int, Any]:
    """Return status and JSON (None without) of an answer; the path stays as it is encoded."""
    async with client.request(method, URL(path, encoded=True), data=data) as reply:
        text = await reply.read()
        if reply.status >= 400 and not path.startswith("/users"):
            assert "found" in json.loads(text)["errors"][0]["message"]
        return reply.status, json.loads(text) if text else None


def calls(data: Path, *requests: tuple[Any, ...]) -> list[tuple[int, Any]]:
    """Return the answers to requests, one after the other."""

    async def act(client: Client) -> list[tuple[int, Any]]:
        return [await call(client, *request) for request in requests]

    result: list[tuple[int, Any]] = served(data, act)
    return result


def files_in(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, hidden ones too."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_there_is_one_user_and_no_other(tmp_path: Path) -> None:
    """Single-user mode: {storage, migrated}; ComfyUI's shape of a refusal is {error}."""
    known, new = calls(tmp_path, ("GET", "/users"), ("POST", "/users", b'{"username": "eve"}'))
    assert known == (200, {"storage": "server", "migrated": True})
    assert (new[0], list(new[1])) == (400, ["error"])
    assert files_in(tmp_path) == {}


def test_settings_are_merged_and_stay(tmp_path: Path) -> None:
    """POST /settings adds, POST /settings/{id} takes any JSON; they are in comfy.settings.json after a restart."""
    key = quote("Comfy.\u00dc/x y", "")
    answers = calls(
        tmp_path,
        ("GET", "/settings"),
        ("GET", "/settings/Comfy.None"),
        ("POST", "/settings", b'{"a": 1, "b": {"c": [null]}}'),
        ("POST", "/settings", b'{"a": 2}'),
        ("POST", f"/settings/{key}", b'"text"'),
        ("POST", "/settings/off", b"false"),
        ("POST", "/settings/nothing", b"null"),
        ("GET", "/settings/off"),
    )
    assert answers == [(200, {}), (200, None), *[(200, {})] * 5, (200, False)]
    expected = {"a": 2, "b": {"c": [None]}, "Comfy.\u00dc/x y": "text", "off": False, "nothing": None}
    assert json.loads((tmp_path / "user/comfy.settings.json").read_text()) == expected
    assert calls(tmp_path, ("GET", "/settings"), ("GET", f"/settings/{key}")) == [(200, expected), (200, "text")]


@pytest.mark.parametrize(
    ("path", "data", "status"),
    [
        ("/settings", b"[]", 400),
        ("/settings", b"no JSON", 400),
        ("/settings", b"\xff", 400),
        ("/settings/a", b"", 400),
        ("/settings/a", b"NaN", 400),
        ("/settings/a", b"[-Infinity]", 400),
        ("/settings/a", b"[" * 100_000, 400),
        ("/settings/a", b'"' + b"x" * (5 << 20) + b'"', 413),
    ],
)
def test_settings_that_are_none_change_nothing(tmp_path: Path, path: str, data: bytes, status: int) -> None:
    """ComfyUI answers 500 to these, or stores what no client can read (NaN is no JSON, RFC 8259)."""
    answers = calls(tmp_path, ("POST", "/settings/kept", b"1"), ("POST", path, data), ("GET", "/settings"))
    assert [answers[1][0], answers[2]] == [status, (200, {"kept": 1})]


def test_settings_sent_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    """Each changes one key; none is lost to another's reading before it was written."""

    async def act(client: Client) -> Any:
        await asyncio.gather(*(call(client, "POST", f"/settings/k{number}", b"1") for number in range(30)))
        return (await call(client, "GET", "/settings"))[1]

    assert served(tmp_path, act) == {f"k{number}": 1 for number in range(30)}


@pytest.mark.parametrize("broken", [b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"a": NaN}', b""])
def test_a_broken_file_of_settings_is_set_aside(tmp_path: Path, broken: bytes) -> None:
    """Clients start without settings; the first change keeps the broken file for whoever can mend it."""
    (tmp_path / "user").mkdir()
    (tmp_path / "user/comfy.settings.json").write_bytes(broken)
    answers = calls(tmp_path, ("GET", "/settings"), ("POST", "/settings/a", b"1"), ("GET", "/settings"))
    assert answers == [(200, {}), (200, {}), (200, {"a": 1})]
    assert files_in(tmp_path / "user")["comfy.settings.json.broken"] == broken


@pytest.mark.parametrize("content", [b"", b"{}", bytes(range(256)) * 5000])
def test_a_file_comes_back_as_it_was_stored(tmp_path: Path, content: bytes) -> None:
    """Slashes as %2F, or plain; the answer is the path below the user's folder, or {path, size, modified, created}."""
    before = os.stat(tmp_path).st_mtime * 1000 - 2000

    async def act(client: Client) -> None:
        name = quote("workflows/a b/\u6f22.json", "")
        assert await call(client, "POST", f"/userdata/{name}", content) == (200, "workflows/a b/\u6f22.json")
        status, info = await call(client, "POST", f"/userdata/{name}?full_info=true", content)
        assert (status, info.pop("path"), info.pop("size")) == (200, "workflows/a b/\u6f22.json", len(content))
        assert info.keys() == {"modified", "created"}
        assert all(isinstance(value, int) and before < value < before + 600_000 for value in info.values())
        for path in (name, quote("workflows/a b/\u6f22.json")):
            async with client.get(URL(f"/userdata/{path}", encoded=True)) as reply:
                assert (reply.status, await reply.read()) == (200, content)
                assert reply.headers["Content-Type"] == "application/json; charset=utf-8"
        assert await call(client, "DELETE", f"/userdata/{name}") == (204, None)
        assert (await call(client, "DELETE", f"/userdata/{name}"))[0] == 404
        assert (await call(client, "GET", f"/userdata/{name}"))[0] == 404

    served(tmp_path, act)
    assert files_in(tmp_path / "user") == {}


@pytest.mark.parametrize("name", ["x.html", "x.svg", "user.css", "x.js", "x.xml", "x"])
def test_user_data_is_never_active(tmp_path: Path, name: str) -> None:
    """A download of unknown bytes, in a sandbox."""

    async def act(client: Client) -> Any:
        await call(client, "POST", f"/userdata/{name}", b"<script>1</script>")
        async with client.get(f"/userdata/{name}") as reply:
            return reply.headers.copy()

    headers = served(tmp_path, act)
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["Content-Disposition"].startswith("attachment")
    assert "sandbox" in headers["Content-Security-Policy"]


def test_overwriting_can_be_forbidden(tmp_path: Path) -> None:
    """409 for a store and for a move onto a file that is there; both files stay as they were."""
    answers = calls(
        tmp_path,
        ("POST", "/userdata/a", b"1"),
        ("POST", "/userdata/b?overwrite=false", b"2"),
        ("POST", "/userdata/a?overwrite=false", b"3"),
        ("POST", "/userdata/a/move/b?overwrite=false"),
    )
    assert answers[:2] == [(200, "a"), (200, "b")]
    assert [status for status, _ in answers[2:]] == [409, 409]
    assert files_in(tmp_path / "user") == {"a": b"1", "b": b"2"}


def test_of_two_that_forbid_overwriting_one_wins(tmp_path: Path) -> None:
    """At the same time, twenty times: one 200, nineteen 409, and the winner's bytes."""

    async def act(client: Client) -> list[int]:
        sent = (call(client, "POST", "/userdata/a?overwrite=false", str(number).encode()) for number in range(20))
        return [status for status, _ in await asyncio.gather(*sent)]

    statuses = served(tmp_path, act)
    assert sorted(statuses) == [200] + [409] * 19
    assert (tmp_path / "user/a").read_bytes() == str(statuses.index(200)).encode()


def test_files_are_moved(tmp_path: Path) -> None:
    """Into folders that are not there yet, over others by default, onto themselves without harm; 404 for none."""
    source, target = quote("s/a.json", ""), quote("t/u/b.json", "")
    answers = calls(
        tmp_path,
        ("POST", f"/userdata/{source}", b"1"),
        ("POST", f"/userdata/{source}/move/{target}"),
        ("POST", f"/userdata/{source}/move/{target}"),
        ("POST", f"/userdata/{target}/move/{target}?full_info=true"),
        ("POST", "/userdata/c", b"2"),
        ("POST", f"/userdata/c/move/{target}"),
        ("POST", f"/userdata/s/move/{target}"),
    )
    assert [status for status, _ in answers] == [200, 200, 404, 200, 200, 200, 404]
    assert (answers[1][1], answers[3][1]["path"]) == ("t/u/b.json", "t/u/b.json")
    assert files_in(tmp_path / "user") == {"t/u/b.json": b"2"}


def tree(root: Path) -> None:
    """Make some files, links and hidden ones in the user's folder."""
    for name in ("workflows/b.json", "workflows/a.json", "workflows/s/c.json", "workflows/.hidden", "top.txt"):
        path = root / "user" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    (root / "secret").mkdir()
    (root / "secret/key").write_bytes(b"secret")
    (root / "user/workflows/link").symlink_to(root / "secret")
    (root / "user/workflows/key").symlink_to(root / "secret/key")


def test_files_are_listed(tmp_path: Path) -> None:
    """Paths relative to `dir`; recurse goes deeper; split adds the parts; full_info the sizes and times."""
    tree(tmp_path)
    base = "/userdata?dir=workflows"
    flat, deep, split, info, slash, every = calls(
        tmp_path,
        ("GET", base),
        ("GET", f"{base}&recurse=true"),
        ("GET", f"{base}&recurse=true&split=true"),
        ("GET", f"{base}&recurse=true&split=true&full_info=true"),
        ("GET", f"{base}/"),
        ("GET", "/userdata?dir=.&recurse=true"),
    )
    assert flat == slash == (200, ["a.json", "b.json"])
    assert deep == (200, ["a.json", "b.json", "s/c.json"])
    assert split == (200, [["a.json", "a.json"], ["b.json", "b.json"], ["s/c.json", "s", "c.json"]])
    assert [(entry["path"], entry["size"]) for entry in info[1]] == [("a.json", 5), ("b.json", 5), ("s/c.json", 5)]
    modified = int((tmp_path / "user/workflows/a.json").stat().st_mtime * 1000)
    assert info[1][0]["modified"] == modified
    assert every == (200, ["top.txt", "workflows/a.json", "workflows/b.json", "workflows/s/c.json"])


def test_the_second_listing_has_folders_first(tmp_path: Path) -> None:
    """Everything below `path`, by name, paths from the user's folder; only files have a size and seconds."""
    tree(tmp_path)
    (status, whole), (_, part) = calls(tmp_path, ("GET", "/v2/userdata"), ("GET", "/v2/userdata?path=workflows/s"))
    assert status == 200
    assert [(entry["type"], entry["name"], entry["path"]) for entry in whole] == [
        ("directory", "s", "workflows/s"),
        ("directory", "workflows", "workflows"),
        ("file", "a.json", "workflows/a.json"),
        ("file", "b.json", "workflows/b.json"),
        ("file", "c.json", "workflows/s/c.json"),
        ("file", "top.txt", "top.txt"),
    ]
    assert whole[0].keys() == {"name", "path", "type"}
    modified = (tmp_path / "user/workflows/s/c.json").stat().st_mtime
    expected = {"name": "c.json", "path": "workflows/s/c.json", "type": "file", "size": 5, "modified": modified}
    assert part == [expected]


def test_listings_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of any size is answered with at most so many files."""
    monkeypatch.setattr(userdata, "MAX_FILES", 10)
    (tmp_path / "user/d").mkdir(parents=True)
    for number in range(50):
        (tmp_path / f"user/d/{number}").touch()
    answers = calls(
        tmp_path, ("GET", "/userdata?dir=d"), ("GET", "/userdata?dir=d&recurse=1"), ("GET", "/v2/userdata?path=d")
    )
    assert [len(listed) for _, listed in answers] == [10, 10, 10]


OUTSIDE = [
    "s/../..",
    "../secret/key",
    "/etc/passwd",
    "workflows/../../secret/key",
    "workflows/link/key",
    "workflows/key",
]
BAD = ["a\0b", "a\\b", "con", "a.", "x" * 300, ".0.part", "a//b", "d/" * 600 + "x"]


@pytest.mark.parametrize(
    ("name", "status"), [(name, 403) for name in OUTSIDE] + [(name, 400) for name in BAD] + [("%2e%2e%2fsecret", 404)]
)
def test_no_name_leads_out_of_the_users_folder(tmp_path: Path, name: str, status: int) -> None:
    """By reading, storing, deleting, moving from and to, and listing; encoded once more it is a plain name."""
    tree(tmp_path)
    before = files_in(tmp_path)
    coded = quote(name, "")
    requests = [
        ("GET", f"/userdata/{coded}"),
        ("DELETE", f"/userdata/{coded}"),
        ("POST", f"/userdata/{coded}/move/new"),
        ("GET", f"/userdata?dir={coded}"),
        ("GET", f"/v2/userdata?path={coded}"),
    ]
    writes = [("POST", f"/userdata/{coded}", b"x"), ("POST", f"/userdata/top.txt/move/{coded}")]
    asked = requests if status == 404 else requests + writes
    assert [code for code, _ in calls(tmp_path, *asked)] == [status] * len(asked)
    assert files_in(tmp_path) == before


def test_folders_are_no_files(tmp_path: Path) -> None:
    """A folder is not read, deleted or replaced as a file, a file not listed or entered as a folder."""
    tree(tmp_path)
    before = files_in(tmp_path)
    answers = calls(
        tmp_path,
        ("GET", "/userdata/workflows"),
        ("DELETE", "/userdata/workflows"),
        ("POST", "/userdata/workflows", b"x"),
        ("POST", "/userdata/top.txt/move/workflows"),
        ("POST", f"/userdata/{quote('top.txt/x', '')}", b"x"),
        ("GET", "/userdata?dir=top.txt"),
        ("GET", "/userdata?dir=none"),
        ("GET", "/userdata"),
        ("GET", "/userdata?dir="),
        ("GET", "/v2/userdata?path=none"),
    )
    assert [status for status, _ in answers] == [404, 404, 409, 409, 409, 404, 404, 400, 400, 404]
    assert files_in(tmp_path) == before


def test_larger_files_are_refused_while_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """413, with and without a length told beforehand; what was there stays."""
    monkeypatch.setattr(userdata, "MAX_FILE_BYTES", 1000)

    async def chunks() -> Any:
        for _ in range(20):
            yield bytes(100)

    async def act(client: Client) -> list[int]:
        statuses = []
        for data in (bytes(1000), bytes(1001), chunks()):
            async with client.post("/userdata/a", data=data) as reply:
                statuses.append(reply.status)
        return statuses

    assert served(tmp_path, act) == [200, 413, 413]
    assert files_in(tmp_path / "user") == {"a": bytes(1000)}


@pytest.mark.parametrize("broken", ["replace", "fsync"])
def test_a_full_disk_is_said_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """507 with a sentence for files, moves and settings, faked at the file layer; no half file stays."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def act(client: Client) -> list[tuple[int, Any]]:
        await call(client, "POST", "/userdata/a", b"1")
        await call(client, "POST", "/settings/k", b"1")
        monkeypatch.setattr(userdata.os, broken, refuse)
        answers = [
            await call(client, "POST", "/userdata/a", b"2"),
            await call(client, "POST", "/settings/k", b"2"),
        ]
        if broken == "replace":
            answers.append(await call(client, "POST", "/userdata/a/move/b"))
        return answers

    answers = served(tmp_path, act)
    monkeypatch.undo()
    assert {status for status, _ in answers} == {507}
    assert all("No space left on device" in answer["errors"][0]["message"] for _, answer in answers)
    stored = files_in(tmp_path / "user")
    assert stored["a"] == b"1"
    assert json.loads(stored["comfy.settings.json"]) == {"k": 1}
    assert stored.keys() == {"a", "comfy.settings.json"}
