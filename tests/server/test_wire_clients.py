"""What clients of ComfyUI's API rely on besides: sockets, and routes that are never missing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import aiohttp
import pytest

from app.server.app import COMFY_ROUTES
from tests.server.kit import Server, serving, wait_for
from tests.server.wire_kit import (
    NODES,
    is_at_a_node,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the node types of the recordings."""
    with serving(tmp_path_factory.mktemp("wire"), "--custom-nodes", NODES) as running:
        yield running


def test_two_sockets_of_one_client_both_hear_and_one_may_leave(server: Server) -> None:
    """In ComfyUI the older one, closing, takes the newer one's messages with it."""

    async def work() -> None:
        async with aiohttp.ClientSession() as http:
            first = await http.ws_connect(f"{server.url}/ws?clientId=twice")
            second = await http.ws_connect(f"{server.url}/ws?clientId=twice")
            prompt = {"1": {"class_type": "ProbeBusy", "inputs": {"seconds": 0.0, "salt": "twice"}}}
            body = {"prompt": prompt, "client_id": "twice"}
            for sockets in ((first, second), (second,)):
                async with http.post(f"{server.url}/prompt", json=body) as answer:
                    assert answer.status == 200
                for socket in sockets:
                    while True:
                        told = json.loads((await socket.receive(10)).data)
                        if told["type"] == "executing" and told["data"]["node"] is None:
                            break
                await first.close()
            await second.close()

    asyncio.run(work())


def test_a_client_that_joins_in_the_middle_hears_what_runs_and_the_rest(server: Server) -> None:
    async def work() -> list[str]:
        async with aiohttp.ClientSession() as http:
            prompt = {"1": {"class_type": "ProbeBusy", "inputs": {"seconds": 1.0, "salt": "joined"}}}
            async with http.post(f"{server.url}/prompt", json={"prompt": prompt, "client_id": "late"}):
                pass
            await asyncio.to_thread(wait_for, lambda: is_at_a_node(server))
            heard = []
            async with http.ws_connect(f"{server.url}/ws?clientId=late") as socket:
                while len(heard) < 3 or heard[-1] != ("executing", None):
                    told = json.loads((await socket.receive(10)).data)
                    heard.append((told["type"], told["data"].get("node")))
            return [kind for kind, _ in heard]

    heard = asyncio.run(work())
    assert heard[:2] == ["status", "executing"]
    assert "executed" in heard
    assert heard[-3:] == ["execution_success", "status", "executing"]


SERVED = [
    *("/prompt", "/queue", "/history", "/history/x", "/object_info", "/object_info/None", "/embeddings", "/models"),
    *("/system_stats", "/features", "/extensions", "/users", "/settings", "/settings/x", "/v2/userdata", "/i18n"),
    *("/workflow_templates", "/global_subgraphs", "/node_replacements", "/experiment/models"),
]


@pytest.mark.parametrize("path", [*SERVED, *(f"/api{path}" for path in SERVED), "/internal/logs", "/internal/logs/raw"])
def test_what_clients_ask_for_is_never_missing(server: Server, path: str) -> None:
    answer = server.call("GET", path)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8" or path == "/internal/logs"
    json.loads(answer.body)


def test_every_route_of_comfyui_exists_under_api_too(server: Server) -> None:
    """A request without what it needs may be refused, but not with a route's 404."""
    for module in COMFY_ROUTES:
        for route in module.routes:
            path = getattr(route, "path", "")
            if path.startswith("/internal") or route.method == "*":  # type: ignore[attr-defined]
                continue
            concrete = path.replace("{file:.+}/move/{dest:.+}", "a/move/b").replace("{file:.+}", "a")
            concrete = "/".join("x" if part.startswith("{") else part for part in concrete.split("/"))
            answer = server.call(route.method, f"/api{concrete}", b"" if route.method != "GET" else None)  # type: ignore[attr-defined]
            assert b"found no route" not in answer.body, (route, answer)
            assert answer.status != 405


def test_posts_that_comfyui_answers_empty_are_answered_with_an_object(server: Server) -> None:
    for path in ("/queue", "/history", "/interrupt", "/free", "/settings"):
        assert server.post(path, {}) == {}
