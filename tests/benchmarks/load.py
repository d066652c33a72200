"""The server under load: large graphs, many small runs, many clients, a long queue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import aiohttp

from tests.benchmarks.table import print_table
from tests.server.graphs import chain, side_by_side
from tests.server.kit import Server, resident_mb, serving, template, text_document, wait_for

SIZES = (100, 1_000, 2_000)
COMFY_RUNS_PER_S = 59
"""Cached small prompts a second of ComfyUI 0.27.1 on such a machine."""
CLIENTS = 200
QUEUED = 5_000
TINY_RUNS = 1_000


def main() -> None:
    """Print all tables."""
    with TemporaryDirectory() as folder, serving(Path(folder)) as server:
        server.run(text_document())
        _memory(server)
        _graphs(server)
        _throughput(server)
        _clients(server)
        _queue(server)


def _graphs(server: Server) -> None:
    rows = []
    for name, make in (("chain", chain), ("side by side", side_by_side)):
        measured = [asyncio.run(_one(server, make(size, f"{name} {size}"))) for size in SIZES]
        for what, index, unit in (
            ("submit", 0, "s"),
            ("run", 1, "s"),
            ("events", 2, "kB"),
            ("ComfyUI events", 3, "kB"),
        ):
            values = [entry[index] for entry in measured]
            per_node = [value / size for value, size in zip(values, SIZES, strict=True)]
            factor = f"{per_node[2] / per_node[0]:.2f}"
            rows.append([name, f"{what} ({unit})", *(f"{value:.3f}" for value in values), factor])
    print_table(["graph", "", *map(str, SIZES), "a node, 2,000 to 100 (linear: 1)"], rows)
    print("ComfyUI 0.27.1 on such a machine: 2,000 side by side 208 s, 400 MB; a chain of 1,000 is refused\n")


async def _one(server: Server, document: dict[str, Any]) -> tuple[float, float, float, float]:
    """Return seconds to submit, seconds to run, kB of our events and of ComfyUI's messages."""
    counts = {"ours": 0, "comfy": 0}
    async with aiohttp.ClientSession() as http:
        ours = await http.ws_connect(f"{server.url}/api/events?client_id=bench")
        theirs = await http.ws_connect(f"{server.url}/ws?clientId=bench")
        ended = asyncio.Event()

        async def hear(socket: aiohttp.ClientWebSocketResponse, key: str, is_end: Callable[[Any], bool]) -> None:
            async for frame in socket:
                counts[key] += len(frame.data)
                if is_end(json.loads(frame.data)):
                    break
            ended.set()

        hearing = [
            asyncio.create_task(hear(ours, "ours", lambda data: any(e["type"] == "done" for e in data["events"]))),
            asyncio.create_task(hear(theirs, "comfy", _is_end_mark)),
        ]
        started = perf_counter()
        body = {"prompt": document["nodes"], "client_id": "bench"}
        async with http.post(f"{server.url}/prompt", json=body) as answer:
            assert answer.status == 200, await answer.text()
        submitted = perf_counter()
        await asyncio.gather(*hearing)
        done = perf_counter()
    return submitted - started, done - submitted, counts["ours"] / 1e3, counts["comfy"] / 1e3


def _is_end_mark(message: Any) -> bool:
    return message["type"] == "executing" and message["data"]["node"] is None


def _throughput(server: Server) -> None:
    body = json.dumps({"prompt": text_document("again")["nodes"]}).encode()
    count, rates = 1_000, []
    for _ in range(3):
        started = perf_counter()
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(lambda _: server.call("POST", "/prompt", body).status, range(count))) == {200}
        wait_for(lambda: server.get("/prompt")["exec_info"]["queue_remaining"] == 0, 120)
        rates.append(count / (perf_counter() - started))
    rate = max(rates)
    row = ["cached small prompts a second, queued to done", f"{rate:.0f}", COMFY_RUNS_PER_S]
    print_table(["", "Ortloom", "ComfyUI", "ratio", "limit"], [[*row, f"{rate / COMFY_RUNS_PER_S:.1f}", "5"]])
    print()


def _clients(server: Server) -> None:
    alone, _, _ = asyncio.run(_watched_run(server, 1, "alone"))
    seconds, previews, ends = asyncio.run(_watched_run(server, CLIENTS, "watched"))
    rows = [
        ["1 client", f"{alone:.2f}", "", ""],
        [f"{CLIENTS} clients", f"{seconds:.2f}", f"{min(previews)} to {max(previews)}", f"{ends} of {CLIENTS}"],
    ]
    print_table(["run with a preview on every step", "seconds", "previews a client", "heard the end"], rows)
    print()


async def _watched_run(server: Server, clients: int, prompt: str) -> tuple[float, list[int], int]:
    """Return seconds of the run, previews by client, and how many clients heard its end."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        sockets = [
            await http.ws_connect(f"{server.url}/api/events?subscribe=all", max_msg_size=0) for _ in range(clients)
        ]

        async def hear(socket: aiohttp.ClientWebSocketResponse) -> tuple[int, bool]:
            previews = 0
            async for frame in socket:
                if frame.type is aiohttp.WSMsgType.BINARY:
                    previews += 1
                elif any(event["type"] == "done" for event in json.loads(frame.data)["events"]):
                    return previews, True
            return previews, False

        hearing = [asyncio.create_task(hear(socket)) for socket in sockets]
        document = template("preview-every-step", _1__text=prompt)
        async with http.post(f"{server.url}/api/runs?wait=true", json={"document": document}) as answer:
            run = await answer.json()
        heard = await asyncio.wait_for(asyncio.gather(*hearing), 60)
        for socket in sockets:
            await socket.close()
    return run["seconds"], [previews for previews, _ in heard], sum(is_end for _, is_end in heard)


def _queue(server: Server) -> None:
    server.post("/api/queue/pause")
    body = json.dumps({"prompt": text_document("waits")["nodes"]}).encode()
    started = perf_counter()
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: server.call("POST", "/prompt", body).status, range(QUEUED))) == {200}
    queued = perf_counter()
    assert len(server.get("/queue")["queue_pending"]) == QUEUED
    listed = perf_counter()
    server.post("/queue", {"clear": True})
    cleared = perf_counter()
    assert server.get("/queue")["queue_pending"] == []
    server.post("/api/queue/resume")
    row = [f"{queued - started:.2f}", f"{listed - queued:.2f}", f"{cleared - listed:.2f}"]
    print_table([f"{QUEUED} runs", "queued (s)", "listed (s)", "cleared (s)"], [["", *row]])


def _memory(server: Server) -> None:
    rows = []
    for part in range(3):
        for index in range(TINY_RUNS // 2):
            server.run(text_document(f"{part} {index}"))
        pids = {"server": server.process.pid, "worker": server.worker_pid()}
        rows.append([(part + 1) * TINY_RUNS // 2, *(f"{resident_mb(pid):.1f}" for pid in pids.values())])
    print_table(["tiny runs in a row", "server MB resident", "worker MB resident"], rows)
    print()


if __name__ == "__main__":
    main()
