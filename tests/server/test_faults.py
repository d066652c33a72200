"""Whatever goes wrong in a worker, at a client, on the disk or in the database: the queue goes on, nothing is lost."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.server.kit import (
    Server,
    children,
    resident_mb,
    serving,
    start,
    template,
    text_document,
    wait_for,
)

NODES = str(Path(__file__).parent / "fault_nodes")


def fault(how: str, salt: str = "") -> dict[str, Any]:
    """Return a document whose only node does it."""
    node = {"class_type": "DoFault", "inputs": {"how": how, "salt": salt}, "_meta": {"title": "Trouble"}}
    return {"version": 1, "nodes": {"1": node}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with nodes that break things; its worker may hold 0.6 GiB."""
    with serving(tmp_path_factory.mktemp("faults"), "--custom-nodes", NODES, "--memory", "0.6") as running:
        yield running


def metric(server: Server, name: str) -> float:
    """Return the value of a metric without labels."""
    lines = server.call("GET", "/metrics").body.decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


@pytest.mark.parametrize(
    ("how", "parts"),
    [
        ("abort", ["SIGABRT"]),
        ("segfault", ["SIGSEGV"]),
        ("exit", ["exit code 3"]),
        ("allocate", ["out of memory", "0.6 GiB", "--memory"]),
    ],
)
def test_a_node_that_ends_the_worker_fails_its_run_and_no_other(server: Server, how: str, parts: list[str]) -> None:
    """The sentence says how the worker ended and which node ran; what waits behind it runs on a new worker."""
    restarts = metric(server, "ortloom_worker_restarts_total")
    broken = server.post("/api/runs", {"document": fault(how)})["run"]
    after = server.post("/api/runs", {"document": text_document(f"after {how}")})["run"]
    failed = server.get(f"/api/runs/{broken}?wait=true")
    assert failed["state"] == "failed"
    (problem,) = failed["problems"]
    assert (problem["node"], problem["title"], problem["code"]) == ("1", "Trouble", "worker_died")
    assert all(part in problem["message"] for part in parts)
    assert server.get(f"/api/runs/{after}?wait=true")["state"] == "done"
    assert metric(server, "ortloom_worker_restarts_total") == restarts + 1


@pytest.mark.parametrize(("how", "part"), [("raise", "RuntimeError: boom"), ("sys.exit", "SystemExit")])
def test_a_node_that_raises_leaves_the_worker_alive(server: Server, how: str, part: str) -> None:
    server.run(text_document())
    worker = server.worker_pid()
    run = server.run(fault(how))
    assert run["state"] == "failed"
    assert part in run["problems"][0]["message"]
    assert "Traceback" not in json.dumps(run)
    assert server.worker_pid() == worker


def test_numbers_that_json_lacks_come_as_text(server: Server) -> None:
    assert server.run(fault("nan"))["outputs"][0]["value"] == "nan"


@pytest.mark.parametrize("how", ["spin", "sleep 1000"])
def test_a_node_that_hears_no_cancel_is_ended_with_its_worker(server: Server, how: str) -> None:
    """After the grace time of 5 s; the run counts as cancelled, because that is what was asked for."""
    run = server.post("/api/runs", {"document": fault(how)})["run"]
    wait_for(lambda: server.get(f"/api/runs/{run}").get("progress", {}).get("current") == "1")
    asked = time.monotonic()
    server.post("/interrupt")
    ended = server.get(f"/api/runs/{run}?wait=60")
    assert ended["state"] == "cancelled"
    assert 4 < time.monotonic() - asked < 30
    assert server.run(text_document(f"after {how}"))["state"] == "done"


def test_kill_9_of_the_worker_within_a_loop(server: Server) -> None:
    run = server.post("/api/runs", {"document": template("text-to-image", _9__steps=1000)})["run"]
    wait_for(lambda: server.get(f"/api/runs/{run}").get("progress", {}).get("nodes", {}).get("9", {}).get("step"))
    os.kill(server.worker_pid(), signal.SIGKILL)
    (problem,) = server.get(f"/api/runs/{run}?wait=true")["problems"]
    assert (problem["title"], problem["node"]) == ("Denoise", "9")
    assert "SIGKILL" in problem["message"]
    assert server.run(template("text-to-image", _9__steps=2))["state"] == "done"


def test_kill_9_of_an_idle_worker_is_not_noticed_by_the_next_run(server: Server) -> None:
    server.run(text_document())
    os.kill(server.worker_pid(), signal.SIGKILL)
    assert server.run(text_document("after the kill"))["state"] == "done"


def test_a_client_that_vanishes_does_not_end_its_run(server: Server) -> None:
    """A reset in the middle of `wait=true`: no FIN, no goodbye."""
    body = json.dumps({"document": fault("sleep 1", "vanished")}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        head = f"POST /api/runs?wait=true HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        wait_for(lambda: server.get("/api/queue/state")["running"])
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    run = server.get("/api/runs?text=vanished")["runs"][0]["run"]
    assert server.get(f"/api/runs/{run}?wait=true")["state"] == "done"


def test_a_client_that_reads_nothing_slows_nobody_and_misses_no_result(server: Server) -> None:
    """It opens both sockets and stops reading; 300 runs and previews later it reads, and finds every end in order."""

    async def work() -> tuple[list[str], list[str], float, float]:
        async with aiohttp.ClientSession(read_bufsize=1024) as http:
            address = f"{server.url}/api/events?subscribe=all&client_id=sleeper"
            sleeper = await http.ws_connect(address, max_msg_size=0)
            second = await http.ws_connect(f"{server.url}/ws?clientId=sleeper")
            for connection in (sleeper, second):
                transport = connection._response.connection.transport  # type: ignore[union-attr]
                transport.pause_reading()
            resident = resident_mb(server.process.pid)
            began = time.monotonic()
            runs = []
            for number in range(300):
                document = text_document(f"{number} " + "x" * 2000)
                async with http.post(f"{server.url}/api/runs?wait=true", json={"document": document}) as answer:
                    runs.append((await answer.json())["run"])
            seed = int(began * 1000)
            body = {"document": template("preview-every-step", _9__seed=seed), "client_id": "sleeper"}
            async with http.post(f"{server.url}/api/runs?wait=true", json=body) as answer:
                runs.append((await answer.json())["run"])
            took, grown = time.monotonic() - began, resident_mb(server.process.pid) - resident
            for connection in (sleeper, second):
                connection._response.connection.transport.resume_reading()  # type: ignore[union-attr]
            ends: list[str] = []
            while len(ends) < len(runs):
                frame = await sleeper.receive(30)
                if frame.type is aiohttp.WSMsgType.TEXT:
                    ends += [e["run"] for e in json.loads(frame.data)["events"] if e["type"] == "done"]
            await second.close()
            await sleeper.close()
            return runs, ends, took, grown

    runs, ends, took, grown = asyncio.run(work())
    assert ends == runs
    assert took < 60
    assert grown < 100


def test_kill_9_of_the_server_loses_none_of_50_runs_and_runs_none_twice(tmp_path: Path) -> None:
    """Killed while some are done and one runs; after the restart each has one entry and one output."""
    data = tmp_path / "data"
    with serving(data, "--custom-nodes", NODES) as server:
        runs = [server.post("/api/runs", {"document": fault("sleep 0.05", str(n))})["run"] for n in range(50)]
        wait_for(lambda: server.get("/api/runs?state=done")["total"] >= 5)
        worker = server.worker_pid()
        server.kill()
        wait_for(lambda: not Path(f"/proc/{worker}").exists())
    with serving(data, "--custom-nodes", NODES, "--paused") as server:
        waiting = server.get("/api/queue/state")["queued"]
        assert 0 < waiting <= 45
        time.sleep(0.5)
        assert server.get("/api/queue/state") == {"running": 0, "queued": waiting, "paused": True}
        server.post("/api/queue/resume")
        wait_for(lambda: server.get("/api/runs?state=done")["total"] == 50)
        found = server.get("/api/runs?limit=1000")
        assert found["total"] == 50
        assert Counter(run["run"] for run in found["runs"]) == Counter(runs)
        values = Counter(output["value"] for run in found["runs"] for output in run["outputs"])
        assert values == Counter(f"survived sleep 0.05 {number}" for number in range(50))


def test_ctrl_c_ends_in_peace_and_the_run_in_hand_goes_on_at_the_next_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, "--custom-nodes", NODES) as server:
        run = server.post("/api/runs", {"document": fault("sleep 2", "peace")})["run"]
        wait_for(lambda: server.get(f"/api/runs/{run}").get("progress", {}).get("current") == "1")
        worker = server.worker_pid()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(10) == 0
        wait_for(lambda: not Path(f"/proc/{worker}").exists(), 5)
    assert "Traceback" not in (data / "console.log").read_text()
    with serving(data, "--custom-nodes", NODES) as server:
        assert server.get(f"/api/runs/{run}?wait=true")["state"] == "done"


def test_sigterm_ends_it_too(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 0


def test_a_second_server_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        second = start(tmp_path)
        assert second.process.wait(20) == 1
        log = (tmp_path / "console.log").read_text()
        assert str(first.process.pid) in log.splitlines()[-1]
        assert str(first.port) in log.splitlines()[-1]
        assert "Traceback" not in log


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


def test_an_extension_that_ends_the_worker_while_it_loads_is_skipped(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    shutil.copytree(NODES, nodes)
    (nodes / "deadly.py").write_text("import os\nos.abort()\n")
    (nodes / "wrong.py").write_text("def broken(:\n")
    with serving(tmp_path / "data", "--custom-nodes", str(nodes)) as server:
        assert server.run(fault("sleep 0", "loaded"))["state"] == "done"
        reports = {report["name"]: report["error"] for report in server.get("/api/node_types")["extensions"]}
        assert "ended the process" in reports["deadly.py"]
        assert "SyntaxError" in reports["wrong.py"]
        assert reports["faults.py"] == ""


def test_a_database_that_another_process_locks_makes_clients_wait(tmp_path: Path) -> None:
    """Locked for 3 s: every submission waits and is accepted."""
    with serving(tmp_path) as server:
        server.run(text_document())
        other = sqlite3.connect(tmp_path / "ortloom.db", isolation_level=None)
        other.execute("begin exclusive")
        answers: list[int] = []
        body = {"document": text_document("locked out")}
        threads = [
            threading.Thread(target=lambda: answers.append(server.call("POST", "/api/runs?wait=true", body).status))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        time.sleep(3)
        assert answers == []
        assert server.get("/health")["status"] == "ok"
        other.execute("rollback")
        for thread in threads:
            thread.join(30)
        assert answers == [200, 200, 200]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A data folder whose output folder is a disk of 256 kB."""
    output = tmp_path / "data" / "output"
    output.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(output)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting needs root; the test with an output folder that cannot be written runs everywhere")
    yield tmp_path / "data"
    subprocess.run(["umount", "-l", str(output)], check=True)


def test_a_full_disk_fails_the_run_with_a_sentence_and_leaves_no_half_file(tiny_disk: Path) -> None:
    with serving(tiny_disk) as server:
        filler = tiny_disk / "output" / "filler"
        filler.write_bytes(b"x" * 250_000)
        run = server.run(template("text-to-image", _9__steps=1))
        assert run["state"] == "failed"
        assert (run["problems"][0]["title"], run["problems"][0]["code"]) == ("Save", "file_unwritable")
        assert "No space left" in run["problems"][0]["message"]
        assert [path.name for path in (tiny_disk / "output").iterdir()] == ["filler"]
        filler.unlink()
        assert server.run(template("text-to-image", _9__steps=1))["state"] == "done"


def test_an_output_folder_that_cannot_be_written_fails_the_run_only(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.run(text_document())
        (tmp_path / "output").rmdir()
        (tmp_path / "output").write_text("in the way")
        run = server.run(template("text-to-image", _9__steps=1))
        assert (run["state"], run["problems"][0]["title"]) == ("failed", "Save")
        (tmp_path / "output").unlink()
        assert server.run(template("text-to-image", _9__steps=1))["state"] == "done"


def test_the_worker_does_not_outlive_the_server(tmp_path: Path) -> None:
    """Even while a node holds every thread of the worker."""
    with serving(tmp_path, "--custom-nodes", NODES) as server:
        server.post("/api/runs", {"document": fault("hold")})
        wait_for(lambda: server.get("/api/queue/state")["running"])
        time.sleep(0.3)
        (worker,) = children(server.process.pid)
        server.kill()
        wait_for(lambda: not Path(f"/proc/{worker}").exists(), 10)
