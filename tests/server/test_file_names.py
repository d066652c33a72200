"""Whatever a client calls a file: no view and no upload fails or leaves its folder."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import MultipartWriter, web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from app.server.comfy import files
from app.server.errors import answer_errors
from app.server.keys import SETTINGS
from app.server.security import guard
from app.server.settings import ServerSettings
from tests.server.file_kit import (
    MASK,
    RED,
    Client,
    left_in,
    view,
)


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
