"""Servers that end, in peace or not, that start again, and that may not start: no run is lost and none is run twice."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from tests.server.fault_kit import NODES, fault, is_alive
from tests.server.kit import Server, children, serving, start, wait_for

QUIET = ("--custom-nodes", NODES)


def done(server: Server) -> int:
    """Return how many runs are done."""
    total: int = server.get("/api/runs?state=done&limit=1")["total"]
    return total


def in_hand(server: Server, run: str) -> bool:
    """Return whether a run's only node runs."""
    return bool(server.get(f"/api/runs/{run}").get("progress", {}).get("current") == "1")


def test_kill_9_of_the_server_loses_none_of_50_runs_and_runs_none_twice(tmp_path: Path) -> None:
    """Killed twice while some are done and one runs. Every run has one entry and one output in the end, and ran once;
    only the one in hand at each kill may have run again, for nobody can know how far it was.
    """
    data, counted = tmp_path / "data", tmp_path / "counted"
    with serving(data, *QUIET) as server:
        documents = [fault(f"count {counted} {number}") for number in range(50)]
        runs = [server.post("/api/runs", {"document": document})["run"] for document in documents]
        wait_for(lambda: done(server) >= 5)
        server.kill()
    with serving(data, *QUIET, port=server.port) as server:
        wait_for(lambda: done(server) >= 15)
        worker = server.worker_pid()
        server.kill()
        wait_for(lambda: not is_alive(worker))
    with serving(data, *QUIET, "--paused", port=server.port) as server:
        before = counted.read_text()
        waiting = server.get("/api/queue/state")["queued"]
        assert 0 < waiting <= 35
        assert waiting + done(server) == 50
        wait_for(lambda: server.get("/api/node_types")["extensions"])  # a worker is ready, and nothing is given to it
        assert server.get("/api/queue/state") == {"running": 0, "queued": waiting, "paused": True}
        assert counted.read_text() == before
        server.post("/api/queue/resume")
        wait_for(lambda: done(server) == 50)
        found = server.get("/api/runs?limit=1000")
        assert found["total"] == 50
        assert Counter(run["run"] for run in found["runs"]) == Counter(runs)
        values = Counter(output["value"] for run in found["runs"] for output in run["outputs"])
        assert values == Counter(f"survived count {counted} {number} " for number in range(50))
        history = server.get("/history?max_items=1000")
        assert set(history) == set(runs)
    times = Counter(counted.read_text().split())
    assert set(times) == {str(number) for number in range(50)}
    assert sum(times.values()) <= 52


def test_ctrl_c_ends_in_peace_and_the_run_in_hand_goes_on_at_the_next_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, *QUIET) as server:
        run = server.post("/api/runs", {"document": fault("sleep 1", "peace")})["run"]
        wait_for(lambda: in_hand(server, run))
        worker = server.worker_pid()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(10) == 0
        wait_for(lambda: not is_alive(worker), 5)
    assert "Traceback" not in (data / "console.log").read_text()
    with serving(data, *QUIET) as server:
        assert server.get(f"/api/runs/{run}?wait=true")["state"] == "done"


def test_ctrl_c_does_not_wait_for_clients(tmp_path: Path) -> None:
    """One waits for a run's end, four have WebSockets, of which two read nothing, one has sent half a request."""

    async def work(server: Server) -> tuple[int, list[Any]]:
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(f"{server.url}/ws?clientId=x") as one,
            http.ws_connect(f"{server.url}/api/events?client_id=x") as other,
            http.ws_connect(f"{server.url}/ws?clientId=y"),
            http.ws_connect(f"{server.url}/api/events?client_id=y"),
        ):
            hearing = [asyncio.create_task(last_of(connection)) for connection in (one, other)]
            await http.post(f"{server.url}/api/live", json={"document": fault("sleep 0"), "client_id": "x"})
            waiting = asyncio.create_task(
                http.post(f"{server.url}/api/runs?wait=true", json={"document": fault("sleep 1000")})
            )
            _, half = await asyncio.open_connection("127.0.0.1", server.port)
            half.write(b"POST /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
            await half.drain()
            await asyncio.to_thread(wait_for, lambda: server.get("/api/queue/state")["running"])
            server.process.send_signal(signal.SIGINT)
            code = await asyncio.to_thread(server.process.wait, 8)
            ends = await asyncio.gather(*hearing)
            await asyncio.gather(waiting, return_exceptions=True)
            half.close()
            return code, ends

    with serving(tmp_path, *QUIET) as server:
        assert asyncio.run(work(server)) == (0, [aiohttp.WSCloseCode.GOING_AWAY] * 2)
    assert "Traceback" not in (tmp_path / "console.log").read_text()


async def last_of(connection: aiohttp.ClientWebSocketResponse) -> int | None:
    """Return the code that a WebSocket was closed with."""
    async for _ in connection:
        pass
    return connection.close_code


def test_sigterm_ends_it_as_soon_as_it_listens(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 0
    assert "Traceback" not in (tmp_path / "console.log").read_text()


def test_the_worker_does_not_outlive_the_server(tmp_path: Path) -> None:
    """Even while a node holds every thread of the worker."""
    with serving(tmp_path, *QUIET) as server:
        run = server.post("/api/runs", {"document": fault("hold")})["run"]
        wait_for(lambda: server.get(f"/api/runs/{run}")["state"] == "running")
        (worker,) = children(server.process.pid)
        note = next((tmp_path / "temp").glob("worker-*.note"))
        wait_for(lambda: note.read_bytes().startswith(f"{run}\n1".encode()))
        server.kill()
        wait_for(lambda: not is_alive(worker), 10)


def test_a_second_server_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        second = start(tmp_path)
        assert second.process.wait(20) == 1
        log = (tmp_path / "console.log").read_text()
        assert f"process {first.process.pid} at http://127.0.0.1:{first.port}" in log.splitlines()[-1]
        assert "Traceback" not in log
        assert first.get("/health")["status"] == "ok"


def test_a_taken_port_names_who_has_it(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        server = start(tmp_path, port=port)
        assert server.process.wait(20) == 1
        sentence = (tmp_path / "console.log").read_text().splitlines()[-1]
        assert f"port {port}" in sentence
        assert f"process {os.getpid()}" in sentence
        assert "--port" in sentence
