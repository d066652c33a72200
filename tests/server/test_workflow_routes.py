"""Saved workflows over HTTP: round trips, optimistic locking, hostile names, broken files, disks that refuse."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from app.server.settings import ServerSettings
from app.server.workflow_store import Conflict, WorkflowStore
from tests.server.workflow_kit import API_FORMAT, DOCUMENT, Client, call, files_in, served


def test_a_document_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    """Unknown types and keys included; the version in the body is the ETag; the file is the document."""

    async def act(client: Client) -> Any:
        saved = await call(client, "PUT", "/api/workflows/a/b%20c", {"document": DOCUMENT, "version": None})
        async with client.get("/api/workflows/a/b%20c") as reply:
            return saved, reply.headers["ETag"], await reply.json()

    saved, etag, read = served(tmp_path, act)
    assert saved[0] == 201
    assert read == {"name": "a/b c", "version": saved[1]["version"], "document": DOCUMENT}
    assert list(read["document"]) == list(DOCUMENT)
    assert etag == f'"{read["version"]}"'
    assert json.loads((tmp_path / "user/workflows/a/b c.json").read_bytes()) == DOCUMENT


def test_300_nodes_survive_byte_for_byte(tmp_path: Path) -> None:
    """The same JSON text, its values and order, before and after: floats, large whole numbers, escapes."""
    nodes = {
        str(index): {
            "class_type": f"Type{index % 7}",
            "inputs": {
                "x": 0.1 * index,
                "seed": 2**64 - 1 - index,
                "text": f'\u2028"\\\n{index}\ud83d',
                "from": ["0", 0],
            },
            "_meta": {"pos": [index * 1e-7, -index]},
        }
        for index in range(300)
    }
    document = {"nodes": nodes, "version": 1, "panel": [{"node": "5", "input": "cfg"}]}

    async def act(client: Client) -> Any:
        await call(client, "PUT", "/api/workflows/large", {"document": document})
        return (await call(client, "GET", "/api/workflows/large"))[1]["document"]

    assert json.dumps(served(tmp_path, act)) == json.dumps(document)


def test_the_second_of_two_writers_is_told_the_version_of_the_first(tmp_path: Path) -> None:
    """Both read version 1; one saves, the other gets 409 with what is there now, and wins after reading that."""

    async def act(client: Client) -> Any:
        path = "/api/workflows/shared"
        first = (await call(client, "PUT", path, {"document": DOCUMENT}))[1]["version"]
        theirs = {**DOCUMENT, "title": "theirs"}
        mine = {**DOCUMENT, "title": "mine"}
        won = await call(client, "PUT", path, {"document": theirs, "version": first})
        lost = await call(client, "PUT", path, {"document": mine, "version": first})
        new = await call(client, "PUT", path, {"document": mine, "version": None})
        header = {"If-Match": f'"{won[1]["version"]}"'}
        again = await call(client, "PUT", path, {"document": mine, "version": first}, headers=header)
        forced = await call(client, "PUT", path, {"document": theirs, "version": "*"})
        return won, lost, new, again, forced

    won, lost, new, again, forced = served(tmp_path, act)
    assert (won[0], again[0], forced[0]) == (200, 200, 200)
    for status, body in (lost, new):
        assert status == 409
        assert body["version"] == won[1]["version"]
        assert body["errors"][0]["code"] == "conflict"
    assert forced[1]["version"] == won[1]["version"]


def test_of_many_saves_at_once_one_wins(tmp_path: Path) -> None:
    """20 writers that all believe in the same version: one 200, nineteen 409, and the winner's document is there."""

    async def act(client: Client) -> Any:
        first = (await call(client, "PUT", "/api/workflows/race", {"document": DOCUMENT}))[1]["version"]
        saves = [
            call(client, "PUT", "/api/workflows/race", {"document": {**DOCUMENT, "n": n}, "version": first})
            for n in range(20)
        ]
        return await asyncio.gather(*saves), await call(client, "GET", "/api/workflows/race")

    replies, (_, read) = served(tmp_path, act)
    winners = [body["version"] for status, body in replies if status == 200]
    assert sorted(status for status, _ in replies) == [200] + [409] * 19
    assert winners == [read["version"]]


def test_a_change_from_outside_is_a_conflict_too(tmp_path: Path) -> None:
    """The version follows the file's bytes; a file that went away is version null."""
    ServerSettings(tmp_path).make_folders()
    store = WorkflowStore(tmp_path / "user/workflows")
    version, _ = store.save("x", DOCUMENT, None)
    (store.folder / "x.json").write_text(json.dumps(DOCUMENT))
    with pytest.raises(Conflict):
        store.save("x", DOCUMENT, version)
    (store.folder / "x.json").unlink()
    with pytest.raises(Conflict) as caught:
        store.save("x", DOCUMENT, version)
    assert caught.value.version is None


HOSTILE = [
    "..%2Fescaped", "%2e%2e/escaped", "%2e%2e%2fescaped", "a/..%2f..%2f..%2fescaped", "%2Fetc%2Fescaped", "a%00b",
    "CON", "nul", "a/COM1", "..%5Cescaped", "C%3A%5Cescaped", ".hidden", "a/.hidden", "%2e%2e", "a%2F%2F..%2Fb",
    "x" * 300,
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_reaches_nothing(tmp_path: Path, name: str) -> None:
    """Read, save, rename, copy and delete answer 4xx, and no file comes or goes outside the workflows' folder."""
    secret = tmp_path / "user" / "escaped.json"
    secret.parent.mkdir()
    secret.write_text("{}")

    async def act(client: Client) -> Any:
        await call(client, "PUT", "/api/workflows/real", {"document": DOCUMENT})
        to = {"to": URL(f"/{name}", encoded=True).path[1:]}
        return [
            await call(client, "GET", f"/api/workflows/{name}"),
            await call(client, "PUT", f"/api/workflows/{name}", {"document": DOCUMENT, "version": "*"}),
            await call(client, "DELETE", f"/api/workflows/{name}?version=*"),
            await call(client, "POST", "/api/workflows/real/rename", to),
            await call(client, "POST", "/api/workflows/real/duplicate", to),
        ]

    replies = served(tmp_path, act)
    assert [status for status, _ in replies if not 400 <= status < 500] == []
    assert all(body["errors"][0]["message"] for _, body in replies)
    assert set(files_in(tmp_path)) == {"user/escaped.json", "user/workflows/real.json"}


def test_half_a_character_is_no_name(tmp_path: Path) -> None:
    """A lone surrogate, which JSON can write and no file name can hold: 400."""

    async def act(client: Client) -> Any:
        await call(client, "PUT", "/api/workflows/real", {"document": DOCUMENT})
        return [
            await call(client, "POST", f"/api/workflows/real/{act}", {"to": "\ud800"})
            for act in ("rename", "duplicate")
        ]

    assert [status for status, _ in served(tmp_path, act)] == [400, 400]


def test_links_that_lead_out_are_neither_listed_nor_followed(tmp_path: Path) -> None:
    """A link to a file and one to a folder outside of the workflows' folder, and one in a circle."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.json").write_text(json.dumps(DOCUMENT))
    folder = tmp_path / "user" / "workflows"
    folder.mkdir(parents=True)
    (folder / "file.json").symlink_to(outside / "secret.json")
    (folder / "folder").symlink_to(outside)
    (folder / "circle.json").symlink_to(folder / "circle.json")

    async def act(client: Client) -> Any:
        paths = ["/api/workflows/file", "/api/workflows/folder/secret", "/api/workflows/circle", "/api/workflows"]
        return [await call(client, "GET", path) for path in paths]

    *refused, listed = served(tmp_path, act)
    assert all(400 <= status < 500 for status, _ in refused)
    assert listed == (200, {"workflows": [], "is_cut": False})


def test_unicode_names_are_names(tmp_path: Path) -> None:
    """As the client wrote them, in the path and in the list."""
    names = ["pingüino", "漢字/企鵝", "🐧 one", "50% off"]

    async def act(client: Client) -> Any:
        for name in names:
            status, body = await call(client, "PUT", URL(f"/api/workflows/{name}").raw_path, {"document": DOCUMENT})
            assert (status, body["name"]) == (201, name) or "%" in name
        percent = await call(client, "PUT", "/api/workflows/50%25%20off", {"document": DOCUMENT, "version": "*"})
        assert percent[1]["name"] == "50% off"
        return await call(client, "GET", "/api/workflows")

    _, body = served(tmp_path, act)
    assert {entry["name"] for entry in body["workflows"]} >= set(names)


def test_broken_files_are_listed_with_what_is_wrong(tmp_path: Path) -> None:
    """Cut off, no object, no workflow, NaN inside: each listed; reading them is 422 with a sentence, never 500."""
    folder = tmp_path / "user" / "workflows"
    folder.mkdir(parents=True)
    (folder / "cut.json").write_text(json.dumps(DOCUMENT)[:100])
    (folder / "list.json").write_text("[]")
    (folder / "bytes.json").write_bytes(b"\xff\xfe\x00\xd8")
    (folder / "empty.json").write_bytes(b"")
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "nan.json").write_text('{"nodes": {}, "x": NaN}')
    (folder / "good.json").write_text(json.dumps(DOCUMENT))
    (folder / "comfy.json").write_text(json.dumps(API_FORMAT))
    os.utime(folder / "good.json", (1_700_000_000, 1_700_000_000.5))
    os.mkfifo(folder / "pipe.json")

    async def act(client: Client) -> Any:
        listed = (await call(client, "GET", "/api/workflows"))[1]["workflows"]
        names = ["cut", "list", "bytes", "empty", "deep", "nan", "pipe"]
        return listed, [await call(client, "GET", f"/api/workflows/{name}") for name in names]

    listed, read = served(tmp_path, act)
    by_name = {entry["name"]: entry for entry in listed}
    assert set(by_name) == {"cut", "list", "bytes", "empty", "deep", "nan", "good", "comfy"}
    broken = {"cut", "list", "bytes", "empty", "deep", "nan"}
    assert {name for name, entry in by_name.items() if entry["error"]} == broken
    assert by_name["good"] == {
        "name": "good", "bytes": (folder / "good.json").stat().st_size, "modified": 1_700_000_000.5,
        "title": "A penguin", "node_count": 2, "error": None,
    }  # fmt: skip
    assert by_name["comfy"]["node_count"] == 1
    assert [status for status, _ in read] == [422] * 6 + [404]
    assert all(body["errors"][0]["message"] for _, body in read)


def test_what_is_no_workflow_is_not_saved(tmp_path: Path) -> None:
    """Every problem is told at its node; the file that was there stays."""
    bad = {"nodes": {"1": {"inputs": {}}, "2": {"class_type": "Text", "inputs": []}, "3": 5}}

    async def act(client: Client) -> Any:
        await call(client, "PUT", "/api/workflows/x", {"document": DOCUMENT})
        before = files_in(tmp_path)
        bodies = [{"document": bad}, {"document": None}, {}, {"document": {"nodes": {}, "x": float("inf")}}]
        replies = [await call(client, "PUT", "/api/workflows/x", {**body, "version": "*"}) for body in bodies]
        replies.append(await call(client, "PUT", "/api/workflows/x", {"document": DOCUMENT, "version": 7}))
        async with client.put("/api/workflows/x", data=b"{") as reply:
            replies.append((reply.status, await reply.json()))
        return before, replies

    before, replies = served(tmp_path, act)
    assert [status for status, _ in replies] == [422, 422, 422, 400, 400, 400]  # a number that JSON lacks is no JSON
    assert [error["node"] for error in replies[0][1]["errors"]] == ["1", "2", "3"]
    assert files_in(tmp_path) == before


@pytest.mark.parametrize(
    ("number", "call_that_fails"),
    [(errno.ENOSPC, "fsync"), (errno.EROFS, "replace"), (errno.EDQUOT, "fsync"), (errno.EACCES, "replace")],
)
def test_a_disk_that_refuses_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, call_that_fails: str
) -> None:
    """507 with the system's reason in a sentence; the old bytes stay and no half file is left beside them."""

    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    async def act(client: Client) -> Any:
        await call(client, "PUT", "/api/workflows/x", {"document": DOCUMENT})
        before = files_in(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(os, call_that_fails, refuse)
            replies = [
                await call(client, "PUT", "/api/workflows/x", {"document": {"nodes": {}}, "version": "*"}),
                await call(client, "POST", "/api/workflows/x/duplicate", {"to": "y"}),
            ]
        return before, replies

    before, replies = served(tmp_path, act)
    for status, body in replies:
        assert status == 507
        assert os.strerror(number) in body["errors"][0]["message"]
        assert str(tmp_path) not in body["errors"][0]["message"]
    assert files_in(tmp_path) == before


def test_rename_copy_and_delete(tmp_path: Path) -> None:
    """A taken name is 409 with the version there; a missing one 404; a delete without a version 428."""

    async def act(client: Client) -> Any:
        version = (await call(client, "PUT", "/api/workflows/a", {"document": DOCUMENT}))[1]["version"]
        statuses = [
            await call(client, "POST", "/api/workflows/a/duplicate", {"to": "sub/b"}),
            await call(client, "POST", "/api/workflows/a/duplicate", {"to": "sub/b"}),
            await call(client, "POST", "/api/workflows/a/rename", {"to": "sub/b"}),
            await call(client, "POST", "/api/workflows/a/rename", {"to": "a"}),
            await call(client, "POST", "/api/workflows/a/rename", {"to": "c", "version": "old"}),
            await call(client, "POST", "/api/workflows/a/rename", {"to": "c", "version": version}),
            await call(client, "POST", "/api/workflows/a/rename", {"to": "d"}),
            await call(client, "POST", "/api/workflows/c/rename", {}),
            await call(client, "POST", "/api/workflows/a/duplicate", {"to": "d"}),
            await call(client, "DELETE", "/api/workflows/c"),
            await call(client, "DELETE", "/api/workflows/c", headers={"If-Match": '"old"'}),
            await call(client, "DELETE", "/api/workflows/c", headers={"If-Match": f'"{version}"'}),
            await call(client, "DELETE", f"/api/workflows/c?version={version}"),
        ]
        return version, statuses

    version, replies = served(tmp_path, act)
    assert [status for status, _ in replies] == [201, 409, 409, 200, 409, 200, 404, 400, 404, 428, 409, 204, 404]
    assert {body["version"] for _, body in replies if body and "version" in body} == {version}
    assert set(files_in(tmp_path)) == {"user/workflows/sub/b.json"}


def test_a_folder_in_the_way_is_told(tmp_path: Path) -> None:
    """Workflow `x` would be the file x.json, where a folder is; and `y/z` cannot be inside the file y.json."""
    (tmp_path / "user/workflows/x.json").mkdir(parents=True)
    (tmp_path / "user/workflows/y.json").write_text("{}")

    async def act(client: Client) -> Any:
        return [
            await call(client, "PUT", f"/api/workflows/{name}", {"document": DOCUMENT}) for name in ("x", "y.json/z")
        ]

    for status, body in served(tmp_path, act):
        assert status == 409
        assert body["errors"][0]["code"] == "name_taken"
