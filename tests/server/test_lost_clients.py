"""Clients that vanish or read nothing: no run notices them, and what they missed waits for them."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.server.fault_kit import NODES, fault
from tests.server.kit import Server, resident_mb, serving, template, text_document, wait_for

RUNS = 300


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that all tests here share."""
    with serving(tmp_path_factory.mktemp("clients"), "--custom-nodes", NODES) as running:
        yield running


def reset(client: socket.socket) -> None:
    """Let a connection end in a reset: no FIN, no goodbye."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def raw(server: Server, head: str, body: bytes = b"") -> socket.socket:
    """Return a connection that has sent one request."""
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(f"{head}\r\nHost: localhost\r\n".encode() + b"\r\n" + body)
    return client


def test_a_client_that_vanishes_while_it_waits_does_not_end_its_run(server: Server) -> None:
    body = json.dumps({"document": fault("sleep 0.5", "vanished")}).encode()
    client = raw(server, f"POST /api/runs?wait=true HTTP/1.1\r\nContent-Length: {len(body)}", body)
    wait_for(lambda: server.get("/api/queue/state")["running"])
    reset(client)
    run = server.get("/api/runs?text=vanished")["runs"][0]["run"]
    assert server.get(f"/api/runs/{run}?wait=true")["state"] == "done"


@pytest.mark.parametrize("path", ["/ws?clientId=gone", "/api/events?client_id=gone&subscribe=all"])
def test_a_client_that_vanishes_from_a_websocket_does_not_end_its_run(server: Server, path: str) -> None:
    upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13"
    client = raw(server, f"GET {path} HTTP/1.1\r\n{upgrade}\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
    assert client.recv(12) == b"HTTP/1.1 101"
    document = template("preview-every-step", _9__steps=60, _9__seed=time.time_ns() % 10**9)
    run = server.post("/api/runs", {"document": document, "client_id": "gone"})["run"]
    wait_for(lambda: server.get(f"/api/runs/{run}").get("progress", {}).get("nodes", {}).get("9", {}).get("step"))
    reset(client)
    assert server.get(f"/api/runs/{run}?wait=true")["state"] == "done"
    assert server.call("GET", "/health").status == 200


async def runs_one_by_one(http: aiohttp.ClientSession, server: Server, salt: str) -> tuple[list[str], float]:
    """Run texts of 2 kB one after another, then one with a preview of each step; return ids and seconds."""
    began = time.monotonic()
    picture = template("preview-every-step", _9__steps=60, _9__seed=time.time_ns() % 10**9)
    documents = [*(text_document(f"{salt} {number} " + "x" * 2000) for number in range(RUNS)), picture]
    runs = []
    for document in documents:
        body = {"document": document, "client_id": "sleeper"}
        async with http.post(f"{server.url}/api/runs?wait=true", json=body) as answer:
            runs.append((await answer.json())["run"])
    return runs, time.monotonic() - began


def test_clients_that_read_nothing_slow_nobody_and_miss_no_result(server: Server) -> None:
    """Two stop reading; 300 runs and many previews later they read, and find every end in order.

    The runs may take twice as long as without them, and 2 s more for whatever else this machine does; what waits for
    the two is some MB of text and the newest previews.
    """

    async def work() -> None:
        async with aiohttp.ClientSession(read_bufsize=1024) as http:
            _, alone = await runs_one_by_one(http, server, "alone")
            address = f"{server.url}/api/events?subscribe=all&client_id=sleeper"
            async with (
                http.ws_connect(address, max_msg_size=0) as ours,
                http.ws_connect(f"{server.url}/ws?clientId=sleeper", max_msg_size=0) as comfy,
            ):
                transports: list[Any] = [
                    connection._response.connection.transport  # type: ignore[union-attr]
                    for connection in (ours, comfy)
                ]
                for transport in transports:
                    transport.pause_reading()
                resident = resident_mb(server.process.pid)
                runs, took = await runs_one_by_one(http, server, "asleep")
                assert resident_mb(server.process.pid) - resident < 60
                assert took < 2 * alone + 2
                for transport in transports:
                    transport.resume_reading()
                assert await ends(ours, len(runs), _our_ends) == runs
                assert await ends(comfy, len(runs), _comfy_ends) == runs

    asyncio.run(work())


async def ends(socket: aiohttp.ClientWebSocketResponse, count: int, read: Any) -> list[str]:
    """Return the first runs that a client hears the end of."""
    found: list[str] = []
    while len(found) < count:
        frame = await socket.receive(30)
        if frame.type is aiohttp.WSMsgType.TEXT:
            found += read(json.loads(frame.data))
        else:
            assert frame.type is aiohttp.WSMsgType.BINARY, frame
    return found


def _our_ends(message: dict[str, Any]) -> list[str]:
    return [event["run"] for event in message["events"] if event["type"] == "done"]


def _comfy_ends(message: dict[str, Any]) -> list[str]:
    return [message["data"]["prompt_id"]] if message["type"] == "execution_success" else []
