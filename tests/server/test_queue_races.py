"""What comes at the wrong moment: a worker's death between two runs, a cancel after the end, a run deleted at once."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from pathlib import Path

from tests.server.kit import serving, text_document


def test_a_worker_that_dies_while_the_next_run_is_fetched_leaves_the_queue_going(tmp_path: Path) -> None:
    """A locked database stands for a slow disk: the run is fetched, and the worker killed, before it can be given."""
    with serving(tmp_path) as server:
        server.run(text_document())
        server.post("/api/queue/pause")
        runs = [server.post("/api/runs", {"document": text_document(str(number))})["run"] for number in range(3)]
        other = sqlite3.connect(tmp_path / "ortloom.db", isolation_level=None)
        other.execute("begin immediate")
        server.post("/api/queue/resume")
        time.sleep(0.2)
        os.kill(server.worker_pid(), signal.SIGKILL)
        time.sleep(0.1)
        other.execute("rollback")
        assert [server.get(f"/api/runs/{run}?wait=30")["state"] for run in runs] == ["done"] * 3


def test_a_cancel_that_comes_too_late_leaves_the_worker_alive(tmp_path: Path) -> None:
    """Interrupts pelt down while runs end; the grace time of 5 s passes, and the worker is the same."""
    with serving(tmp_path) as server:
        server.run(text_document())
        worker = server.worker_pid()
        stop = threading.Event()

        def pelt() -> None:
            while not stop.is_set():
                server.post("/interrupt")

        threads = [threading.Thread(target=pelt) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(40):
            server.run(text_document(f"pelted {number}"))
        stop.set()
        for thread in threads:
            thread.join()
        time.sleep(6)
        assert server.worker_pid() == worker


def test_whoever_waits_for_a_run_that_is_deleted_is_answered(tmp_path: Path) -> None:
    """Ten clients queue and wait while another clears the queue again and again."""
    with serving(tmp_path, "--paused") as server:
        states: list[str] = []
        stop = threading.Event()

        def wait() -> None:
            for number in range(5):
                answer = server.call("POST", "/api/runs?wait=60", {"document": text_document(str(number))})
                states.append(answer.json["state"])

        def clear() -> None:
            while not stop.is_set():
                server.post("/api/queue/clear")

        clearing = threading.Thread(target=clear)
        waiting = [threading.Thread(target=wait) for _ in range(10)]
        for thread in (clearing, *waiting):
            thread.start()
        for thread in waiting:
            thread.join(50)
        stop.set()
        clearing.join()
        assert states == ["cancelled"] * 50
