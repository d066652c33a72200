"""A database that another process holds: clients wait, or are told to come again; nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from app.server.app import make_app
from app.server.settings import ServerSettings
from app.server.storage.database import Database
from tests.server.fault_kit import NODES, fault
from tests.server.kit import answers, serving, start, text_document, wait_for


@contextlib.contextmanager
def locked(data: Path) -> Iterator[None]:
    """Hold the database of a data folder as a process that writes does."""
    with contextlib.closing(sqlite3.connect(data / "ortloom.db", isolation_level=None)) as other:
        other.execute("begin exclusive")
        yield
        other.execute("rollback")


def test_submissions_wait_while_the_database_is_locked_for_3_s(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.run(text_document())
        body = {"document": text_document("locked out")}
        statuses: list[int] = []
        threads = [
            threading.Thread(target=lambda: statuses.append(server.call("POST", "/api/runs?wait=true", body).status))
            for _ in range(3)
        ]
        with locked(tmp_path):
            for thread in threads:
                thread.start()
            end = time.monotonic() + 3
            while time.monotonic() < end:
                assert server.get("/health")["status"] == "ok"
                assert server.get("/api/runs")["total"] == 1
                time.sleep(0.1)
            assert statuses == []
        for thread in threads:
            thread.join(30)
        assert statuses == [200, 200, 200]


def test_a_server_waits_for_a_database_that_is_locked_at_its_start(tmp_path: Path) -> None:
    with serving(tmp_path):
        pass
    with locked(tmp_path):
        server = start(tmp_path)
        time.sleep(1.5)
        assert not answers(server)
        assert server.process.poll() is None
    try:
        wait_for(lambda: answers(server))
        assert server.run(text_document())["state"] == "done"
    finally:
        server.process.terminate()
        assert server.process.wait(20) == 0


@contextlib.asynccontextmanager
async def impatient(data: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """A server in this process that waits for its database for half a second, not for 30 s."""
    monkeypatch.setattr("app.server.app.Database", lambda path: Database(path, lock_limit_s=0.5))
    async with TestClient(TestServer(make_app(ServerSettings(data, custom_nodes=Path(NODES))))) as client:
        yield client


async def state_of(client: Any, run: str) -> str:
    """Return the state of a run."""
    async with client.get(f"/api/runs/{run}") as answer:
        state: str = (await answer.json())["state"]
        return state


async def submitted(client: Any, document: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return status and body of an answer to a submission."""
    async with client.post("/api/runs", json={"document": document}) as answer:
        return answer.status, await answer.json()


def test_nothing_is_lost_while_the_database_is_locked_for_longer_than_a_server_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run ends and one waits meanwhile. Whoever submits is told to come again, and his run is not there later."""

    async def work() -> None:
        async with impatient(tmp_path, monkeypatch) as client:
            _, running = await submitted(client, fault("sleep 1", "running"))
            _, waiting = await submitted(client, fault("sleep 0", "waiting"))
            while await state_of(client, running["run"]) != "running":
                await asyncio.sleep(0.02)
            with locked(tmp_path):
                status, body = await submitted(client, text_document("refused"))
                assert (status, body["errors"][0]["code"]) == (503, "database_locked")
                assert "locked by another process" in body["errors"][0]["message"]
                prompt = {"1": {"class_type": "ShowText", "inputs": {"text": "refused too"}}}
                async with client.post("/prompt", json={"prompt": prompt}) as answer:
                    assert answer.status == 503
                for path in ("/api/runs", "/queue", "/history", "/api/queue/state", "/metrics", "/health"):
                    async with client.get(path) as answer:
                        assert answer.status == 200, path
                await asyncio.sleep(1.5)
                assert await state_of(client, running["run"]) == "running"
                assert await state_of(client, waiting["run"]) == "queued"
            async with asyncio.timeout(15):
                while [await state_of(client, run["run"]) for run in (running, waiting)] != ["done", "done"]:
                    await asyncio.sleep(0.05)
            async with client.get("/api/runs") as answer:
                found = await answer.json()
            assert {run["outputs"][0]["value"] for run in found["runs"]} == {
                "survived sleep 1 running",
                "survived sleep 0 waiting",
            }
            assert found["total"] == 2

    asyncio.run(work())
