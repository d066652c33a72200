"""Saved workflows on a small application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from app.server.api.workflows import routes
from app.server.errors import answer_errors
from app.server.keys import NODES, SETTINGS
from app.server.settings import ServerSettings
from tests.server.kit import library

Client = TestClient[web.Request, web.Application]

DOCUMENT: dict[str, Any] = {
    "version": 1,
    "title": "A penguin",
    "nodes": {
        "1": {"class_type": "Text", "inputs": {"text": "penguin"}, "_meta": {"title": "Prompt", "pos": [0, 0]}},
        "2": {"class_type": "NobodyKnowsThis", "inputs": {"deep": {"__value__": ["1", 0]}}, "colour": "#ff00ff"},
    },
    "groups": [{"title": "Gruppe \u00e4\u6f22\U0001f427", "nodes": ["1"]}],
    "something_new": None,
}
API_FORMAT = {"7": {"class_type": "Text", "inputs": {"text": "from ComfyUI"}}}


def served(tmp_path: Path, act: Callable[[Client], Awaitable[Any]]) -> Any:
    """Return what `act` returns, given a client of a real server on a data folder."""
    settings = ServerSettings(tmp_path)
    settings.make_folders()

    async def serve() -> Any:
        app = web.Application(middlewares=[answer_errors], client_max_size=10 << 20)
        app[SETTINGS], app[NODES] = settings, library(settings.folders)
        app.add_routes(routes)
        async with TestClient(TestServer(app)) as client:
            return await act(client)

    return asyncio.run(serve())


async def call(client: Client, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
    """Return status and JSON of an answer; a path that is percent-encoded stays so."""
    async with client.request(method, URL(path, encoded=True), json=body, **more) as reply:
        text = await reply.text()
        return reply.status, json.loads(text) if text else None


def files_in(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, hidden ones too."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }
