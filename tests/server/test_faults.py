"""Whatever goes wrong inside a worker: its run fails with a sentence, a new worker starts, the queue goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.fault_kit import NODES, fault, group_of, metric
from tests.server.kit import Server, serving, template, text_document, wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with nodes that break things; its worker may hold 0.6 GiB."""
    with serving(tmp_path_factory.mktemp("faults"), "--custom-nodes", NODES, "--memory", "0.6") as running:
        yield running


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


def test_what_a_node_has_forked_ends_with_the_worker(server: Server) -> None:
    """The child holds all that the worker had open: without care the server would wait for its end, 1,000 s."""
    server.run(text_document())
    worker = server.worker_pid()
    run = server.run(fault("fork"))
    assert "SIGABRT" in run["problems"][0]["message"]
    assert server.run(text_document("after the fork"))["state"] == "done"
    assert group_of(worker) == []


@pytest.mark.parametrize(
    ("how", "part"),
    [
        ("raise", "RuntimeError: boom"),
        ("raise unforeseen", "Unforeseen: boom"),
        ("raise unspeakable", "failed"),
        ("sys.exit", "SystemExit"),
        ("emit type", "found an event whose type is int 5"),
        ("emit path", "found an event whose path is int 5"),
        ("emit step", "found an event whose step is str 'first'"),
        ("emit node", "found an event whose node is int 5"),
        ("emit digits", "no JSON"),
        ("emit endless", "at most 100 levels"),
        ("emit large", "found an output of 17 MiB, accepted at most 16 MiB"),
        ("emit float picture", "found a preview of float32 of shape (4, 4, 3), accepted uint8"),
        ("emit no picture", "found a preview of NoneType"),
        ("emit text", "found str 'what' among the events"),
    ],
)
def test_a_node_that_raises_or_shows_nonsense_leaves_the_worker_alive(server: Server, how: str, part: str) -> None:
    server.run(text_document())
    worker = server.worker_pid()
    run = server.run(fault(how))
    assert run["state"] == "failed"
    assert part in run["problems"][0]["message"]
    assert "Traceback" not in json.dumps(run)
    assert server.worker_pid() == worker


def test_values_that_json_lacks_come_as_text(server: Server) -> None:
    assert server.run(fault("emit nan"))["outputs"][0]["value"] == "nan"
    assert server.run(fault("emit surrogate"))["outputs"][0]["value"] == "\ud800"


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
