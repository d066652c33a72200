"""Workflows that are imported, templates, and what is left to other routes."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import FormData, web
from aiohttp.test_utils import TestClient, TestServer

from app.folders import BUNDLED_WORKFLOWS
from app.png import write_png
from app.server.api.workflows import routes
from app.server.errors import answer_errors
from app.server.keys import SETTINGS
from app.server.settings import ServerSettings
from tests.server.workflow_kit import API_FORMAT, DOCUMENT, Client, call, files_in, served


def test_imports_are_answered_as_our_document_and_not_saved(tmp_path: Path) -> None:
    """ComfyUI's API format and our PNG, as the body and in a form, mean the same nodes."""
    write_png(tmp_path / "ours.png", np.zeros((8, 8, 3), np.uint8), DOCUMENT)
    png = (tmp_path / "ours.png").read_bytes()
    api = json.dumps(API_FORMAT).encode()

    async def act(client: Client) -> Any:
        found = []
        for data in (png, api):
            form = FormData()
            form.add_field("note", "not the file")
            form.add_field("file", io.BytesIO(data), filename="../../any.name")
            for body in (data, form):
                async with client.post("/api/workflows/import", data=body) as reply:
                    found.append((reply.status, await reply.json()))
        return found

    raw_png, form_png, raw_api, form_api = served(tmp_path, act)
    assert raw_png == form_png == (200, {"document": DOCUMENT})
    assert raw_api == form_api == (200, {"document": {"version": 1, "nodes": API_FORMAT}})
    assert set(files_in(tmp_path)) == {"ours.png"}


def test_imports_that_hold_no_workflow_are_refused_in_a_sentence(tmp_path: Path) -> None:
    """A cut PNG, one without a workflow, no JSON, broken forms: 4xx; a body over the server's limit: 413."""
    write_png(tmp_path / "plain.png", np.zeros((8, 8, 3), np.uint8), None)
    png = (tmp_path / "plain.png").read_bytes()
    kind = {"Content-Type": "multipart/form-data"}
    with_boundary = {"Content-Type": "multipart/form-data; boundary=xx"}
    head = b'--xx\r\nContent-Disposition: form-data; name="f"\r\n'
    requests: list[tuple[bytes, dict[str, str]]] = [
        (png, {}), (png[:20], {}), (b"", {}), (b"no", {}), (b'{"nodes": {}, "a": NaN}', {}), (b"abc", kind),
        (b"abc", with_boundary), (head + b"\r\n{}", with_boundary), (b"--xx--\r\n", with_boundary),
        (head + b"Content-Type: text/plain; charset=nope\r\n\r\n{}\r\n--xx--\r\n", with_boundary),
        (head + b"Content-Transfer-Encoding: nope\r\n\r\n{}\r\n--xx--\r\n", with_boundary),
        (b"0" * (11 << 20), {}),
    ]  # fmt: skip

    async def act(client: Client) -> Any:
        found = []
        for data, headers in requests:
            async with client.post("/api/workflows/import", data=data, headers=headers) as reply:
                found.append((reply.status, (await reply.json())["errors"][0]["message"]))
        return found

    replies = served(tmp_path, act)
    assert [status for status, _ in replies if status not in (400, 422)] == [413]
    assert all(message for _, message in replies)


def test_templates_are_those_of_the_program(tmp_path: Path) -> None:
    """Names and documents are the bundled files; title and note those of each one's note."""

    async def act(client: Client) -> Any:
        listed = await call(client, "GET", "/api/templates")
        one = await call(client, "GET", "/api/templates/text-to-image")
        missing = [await call(client, "GET", f"/api/templates/{name}") for name in ("nope", "%2e%2e", "..%2Fx", "a%00")]
        return listed, one, missing

    (_, listed), one, missing = served(tmp_path, act)
    files = {path.stem: path for path in BUNDLED_WORKFLOWS.glob("*.json")}
    by_name = {entry["name"]: entry for entry in listed["templates"]}
    document = json.loads(files["text-to-image"].read_bytes())
    assert set(by_name) == set(files)
    assert one == (200, {"name": "text-to-image", "document": document})
    assert by_name["text-to-image"] == {
        "name": "text-to-image",
        "title": document["nodes"]["note"]["_meta"]["title"],
        "note": document["nodes"]["note"]["inputs"]["text"],
        "bytes": files["text-to-image"].stat().st_size,
    }
    assert [status for status, _ in missing] == [404] * 4


def test_a_post_to_run_is_left_to_its_own_route(tmp_path: Path) -> None:
    """A route registered after these still gets names that end in /run, folders included."""

    async def run(request: web.Request) -> web.Response:
        return web.json_response(request.match_info["name"])

    async def ask() -> Any:
        app = web.Application(middlewares=[answer_errors])
        app[SETTINGS] = ServerSettings(tmp_path)
        app.add_routes([*routes, web.post("/api/workflows/{name:.+}/run", run)])
        async with TestClient(TestServer(app)) as client:
            return [await call(client, "POST", f"/api/workflows/{name}/run") for name in ("a", "a/b/rename", "import")]

    assert asyncio.run(ask()) == [(200, "a"), (200, "a/b/rename"), (200, "import")]
