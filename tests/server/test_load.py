"""Large graphs, a long queue and many clients; how fast they are is measured in tests/benchmarks/load.py."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import pytest

from tests.server.graphs import chain, side_by_side
from tests.server.kit import Server, serving, template, text_document


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that all tests here share."""
    with serving(tmp_path_factory.mktemp("load")) as running:
        yield running


async def event_bytes(server: Server, document: dict[str, Any]) -> tuple[int, int]:
    """Run a document; return bytes of our events and of ComfyUI's messages about it."""
    counts = [0, 0]

    async def hear(socket: aiohttp.ClientWebSocketResponse, place: int, is_end: Callable[[Any], bool]) -> None:
        async for frame in socket:
            counts[place] += len(frame.data)
            if is_end(json.loads(frame.data)):
                return

    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{server.url}/api/events?client_id=load") as ours,
        http.ws_connect(f"{server.url}/ws?clientId=load") as theirs,
    ):
        hearing = asyncio.gather(
            hear(ours, 0, lambda data: any(event["type"] == "done" for event in data["events"])),
            hear(theirs, 1, lambda data: data["type"] == "executing" and data["data"]["node"] is None),
        )
        body = {"prompt": document["nodes"], "client_id": "load"}
        async with http.post(f"{server.url}/prompt", json=body) as answer:
            assert answer.status == 200
        await asyncio.wait_for(hearing, 60)
    return counts[0], counts[1]


@pytest.mark.parametrize("make", [chain, side_by_side])
def test_event_bytes_grow_no_faster_than_the_nodes(server: Server, make: Callable[[int, str], dict[str, Any]]) -> None:
    """2,000 nodes send at most 1.2 times as much a node as 200 (repeating all states would send ten times as much)."""
    (few, few_comfy), (many, many_comfy) = (asyncio.run(event_bytes(server, make(n, f"size {n}"))) for n in (200, 2000))
    assert many <= 1.2 * 10 * few
    assert many_comfy <= 1.2 * 10 * few_comfy


def test_a_long_queue_is_listed_in_order_and_cleared(server: Server) -> None:
    server.post("/api/queue/pause")
    runs = [server.post("/api/runs", {"document": text_document(str(number))})["run"] for number in range(500)]
    assert [entry[1] for entry in server.get("/queue")["queue_pending"]] == runs
    assert server.post("/api/queue/clear") == {"deleted": 500}
    assert server.get("/queue")["queue_pending"] == []
    server.post("/api/queue/resume")


def test_every_one_of_60_clients_gets_previews_and_the_end(server: Server) -> None:
    async def work() -> list[tuple[int, bool]]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            address = f"{server.url}/api/events?subscribe=all"
            sockets = [await http.ws_connect(address, max_msg_size=0) for _ in range(60)]

            async def hear(socket: aiohttp.ClientWebSocketResponse) -> tuple[int, bool]:
                previews = 0
                async for frame in socket:
                    if frame.type is aiohttp.WSMsgType.BINARY:
                        previews += 1
                    elif any(event["type"] == "done" for event in json.loads(frame.data)["events"]):
                        return previews, True
                return previews, False

            hearing = asyncio.gather(*map(hear, sockets))
            body = {"document": template("preview-every-step", _9__seed=99)}
            async with http.post(f"{server.url}/api/runs", json=body) as answer:
                assert answer.status == 201
            told = await asyncio.wait_for(hearing, 60)
            for socket in sockets:
                await socket.close()
            return told

    told = asyncio.run(work())
    assert all(is_end and previews >= 1 for previews, is_end in told)
