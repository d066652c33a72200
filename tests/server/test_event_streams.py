"""The event stream of our own API: order, numbers, what a client missed, slow clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from app.graph.errors import WorkflowError
from app.server.app import make_app
from app.server.outgoing import Outgoing
from app.server.settings import ServerSettings
from app.server.streams import KEEP_EVENTS, MAX_TOPICS, Stream, Streams
from tests.server.graphs import side_by_side
from tests.server.kit import Server, serving, template, text_document


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that all tests here share."""
    with serving(tmp_path_factory.mktemp("events")) as running:
        yield running


async def heard(socket: aiohttp.ClientWebSocketResponse, last: str = "done") -> list[tuple[int, dict[str, Any]]]:
    """Return (number of the frame's last event, event) up to one of a type."""
    found: list[tuple[int, dict[str, Any]]] = []
    while True:
        frame = await socket.receive(30)
        if frame.type is aiohttp.WSMsgType.TEXT:
            data = json.loads(frame.data)
            found += [(data["seq"], event) for event in data["events"]]
            if any(event["type"] == last for event in data["events"]):
                return found
        else:
            assert frame.type is aiohttp.WSMsgType.BINARY, frame


async def submit(http: aiohttp.ClientSession, server: Server, document: dict[str, Any], client_id: str) -> str:
    async with http.post(f"{server.url}/api/runs", json={"document": document, "client_id": client_id}) as answer:
        run: str = (await answer.json())["run"]
        return run


def test_a_run_is_told_in_order_to_its_client_only(server: Server) -> None:
    async def talk() -> tuple[list[str], list[str]]:
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(f"{server.url}/api/events?client_id=mine") as mine,
            http.ws_connect(f"{server.url}/api/events?client_id=other") as other,
        ):
            run = await submit(http, server, template("text-to-image", _9__steps=3), "mine")
            told = [event for _, event in await heard(mine)]
            await submit(http, server, text_document(), "other")
            foreign = [event for _, event in await heard(other)]
            assert all(event.get("run", run) == run for event in told)
            return [event["type"] for event in told if event["type"] not in ("hello", "queue")], [
                event["type"] for event in foreign if event.get("run") == run
            ]

    types, foreign = asyncio.run(talk())
    assert foreign == []
    assert types[0] == "started"
    assert types[-3:] == ["output", "node_finished", "done"]
    assert types.count("step_finished") == 3
    assert types.index("step_finished") > types.index("node_started")


def test_a_client_that_comes_again_gets_exactly_what_it_missed(server: Server) -> None:
    async def talk() -> None:
        async with aiohttp.ClientSession() as http:
            async with http.ws_connect(f"{server.url}/api/events?client_id=again") as socket:
                await submit(http, server, text_document("before"), "again")
                first = await heard(socket)
            stream = first[0][1]["stream"]
            last = first[-1][0]
            await submit(http, server, side_by_side(50, "missed"), "again")
            address = f"{server.url}/api/events?client_id=again&stream={stream}&after={last}"
            async with http.ws_connect(address) as socket:
                second = await heard(socket)
            hello = second[0][1]
            assert (hello["type"], hello["after"], hello.get("too_old")) == ("hello", last, None)
            types = [event["type"] for _, event in second]
            assert types.count("node_finished") == 50
            assert types.count("output") == 50
            # A second time from the same number gives the same events.
            async with http.ws_connect(address) as socket:
                third = await heard(socket)
            kept = ("started", "node_started", "node_finished", "output", "done")
            assert [e for _, e in third if e["type"] in kept] == [e for _, e in second if e["type"] in kept]

    asyncio.run(talk())


@pytest.mark.parametrize("query", ["stream=other&after=1", "after=99999999", "stream=&after=0"])
def test_a_number_that_nobody_knows_is_answered_too_old(server: Server, query: str) -> None:
    async def talk() -> dict[str, Any]:
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(f"{server.url}/api/events?client_id=lost&{query}") as socket,
        ):
            hello: dict[str, Any] = json.loads((await socket.receive(10)).data)["events"][0]
            return hello

    hello = asyncio.run(talk())
    assert hello["too_old"] is True
    assert "GET /api/runs" in hello["message"]


def test_bad_numbers_are_refused_before_the_upgrade(server: Server) -> None:
    answer = server.call("GET", "/api/events?after=minus")
    assert answer.status == 400


def test_a_stream_keeps_a_bounded_number_of_events() -> None:
    stream = Stream("someone")
    for number in range(KEEP_EVENTS + 10):
        stream.add(b"%d" % number)
    assert stream.after(9) is None
    kept = stream.after(10)
    assert kept is not None
    assert (kept[0], kept[-1], len(kept)) == ((11, b"10"), (KEEP_EVENTS + 10, b"%d" % (KEEP_EVENTS + 9)), KEEP_EVENTS)
    assert stream.after(stream.number) == []
    assert stream.after(stream.number + 1) is None


def test_an_event_for_several_topics_comes_once() -> None:
    streams = Streams()
    stream = streams.open("me")
    streams.subscribe(stream, "all")
    streams.subscribe(stream, "run:1")
    streams.publish(("all", "run:1", "client:me"), {"type": "x"})
    streams.publish(("run:2",), {"type": "y"})
    streams.unsubscribe(stream, "all")
    streams.publish(("all",), {"type": "z"})
    assert stream.after(0) == [(1, b'{"type":"x"}')]


class StuckSocket:
    """A WebSocket whose client takes nothing until it is let go."""

    closed = False

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.sent: list[str | bytes] = []

    async def send_str(self, text: str) -> None:
        """Wait, then take."""
        await self.free.wait()
        self.sent.append(text)

    async def send_bytes(self, data: bytes) -> None:
        """Wait, then take."""
        await self.free.wait()
        self.sent.append(data)


def test_a_slow_client_loses_previews_but_no_text() -> None:
    async def talk() -> StuckSocket:
        socket = StuckSocket()
        outgoing = Outgoing(socket)  # type: ignore[arg-type]
        sending = asyncio.create_task(outgoing.run(None))
        for number in range(100):
            outgoing.text(b"text %d" % number)
            outgoing.preview("node", b"picture %d" % number)
            await asyncio.sleep(0)
        socket.free.set()
        await asyncio.sleep(0.05)
        sending.cancel()
        return socket

    sent = asyncio.run(talk()).sent
    assert [item for item in sent if isinstance(item, str)] == [f"text {number}" for number in range(100)]
    assert [item for item in sent if isinstance(item, bytes)][-1] == b"picture 99"
    assert len([item for item in sent if isinstance(item, bytes)]) <= 2


@pytest.mark.parametrize(("silent_s", "is_cut"), [(1.0, False), (5.0, True)])
def test_a_client_that_reads_nothing_keeps_its_connection_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent_s: float, is_cut: bool
) -> None:
    """The heartbeat of 60 s is shortened to 2 s: as long as that nothing need be read; one and a half times as long
    and the client counts as gone. Either way it finds what it missed, at once or when it comes again.
    """
    monkeypatch.setattr("app.server.api.events.HEARTBEAT_S", 2.0)

    async def work() -> bool:
        async with TestClient(TestServer(make_app(ServerSettings(tmp_path)))) as client:
            socket = await client.ws_connect("/api/events?client_id=sleeper")
            hello = json.loads((await socket.receive(10)).data)["events"][0]
            transport = socket._response.connection.transport  # type: ignore[union-attr]
            transport.pause_reading()
            body = {"document": text_document("missed"), "client_id": "sleeper"}
            async with client.post("/api/runs?wait=true", json=body) as answer:
                run = (await answer.json())["run"]
            await asyncio.sleep(silent_s)
            transport.resume_reading()
            try:
                told = await heard(socket)
                was_cut = False
            except (AssertionError, ConnectionError):
                was_cut = True
                address = f"/api/events?client_id=sleeper&stream={hello['stream']}&after=0"
                told = await heard(await client.ws_connect(address))
            assert [event["run"] for _, event in told if event["type"] == "done"] == [run]
            # What was sent before the cut can still be read; the connection is closed behind it all the same.
            try:
                return was_cut or (await socket.receive(2)).type is not aiohttp.WSMsgType.TEXT
            except TimeoutError:
                return False

    assert asyncio.run(asyncio.wait_for(work(), 60)) is is_cut


def test_subscriptions_of_one_client_are_bounded() -> None:
    streams = Streams()
    stream = streams.open("greedy")
    for number in range(MAX_TOPICS - len(stream.topics)):
        streams.subscribe(stream, f"run:{number}")
    with pytest.raises(WorkflowError, match="accepted no more"):
        streams.subscribe(stream, "run:one more")
