"""A disk that is full: runs fail with a sentence, nothing half written stays, and all goes on once there is room."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.kit import Server, children, serving, template, text_document, wait_for


@pytest.fixture
def tiny_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder that is a disk of so many kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={request.param}k", "tmpfs"]
    try:
        mounted = subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting needs root; the tests with limited and misplaced files run everywhere")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Write until nothing more fits; return the file."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return filler


def picture_fails(server: Server, reason: str) -> None:
    """Check that a picture cannot be saved, for a reason that the sentence names."""
    run = server.run(template("text-to-image", _9__steps=1))
    assert run["state"] == "failed"
    (problem,) = run["problems"]
    assert (problem["title"], problem["code"]) == ("Save", "file_unwritable")
    assert reason in problem["message"]


def picture_is_saved(server: Server, folder: Path) -> None:
    """Check that a picture is saved, and nothing else with it."""
    run = server.run(template("text-to-image", _9__steps=1))
    assert run["state"] == "done"
    assert [path.name for path in folder.iterdir()] == [run["outputs"][0]["path"]]


@pytest.mark.parametrize("tiny_disk", [256], indirect=True)
def test_a_full_disk_fails_the_run_with_a_sentence_and_leaves_no_half_file(tiny_disk: Path, tmp_path: Path) -> None:
    output = tmp_path / "data" / "output"
    output.parent.mkdir()
    output.symlink_to(tiny_disk)
    with serving(tmp_path / "data") as server:
        filler = fill(output)
        picture_fails(server, "No space left")
        assert [path.name for path in output.iterdir()] == ["filler"]
        filler.unlink()
        picture_is_saved(server, output)


def test_a_file_that_may_not_grow_fails_the_run_and_leaves_no_half_file(tmp_path: Path) -> None:
    """No file of the worker may have more than 1,000 bytes: a picture stops in the middle of its pixels."""
    with serving(tmp_path) as server:
        server.run(text_document())
        worker = server.worker_pid()
        before = resource.prlimit(worker, resource.RLIMIT_FSIZE)
        resource.prlimit(worker, resource.RLIMIT_FSIZE, (1000, before[1]))
        picture_fails(server, "File too large")
        assert list((tmp_path / "output").iterdir()) == []
        resource.prlimit(worker, resource.RLIMIT_FSIZE, before)
        picture_is_saved(server, tmp_path / "output")
        assert server.worker_pid() == worker


def test_an_output_folder_that_is_a_file_fails_the_run_only(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.run(text_document())
        (tmp_path / "output").rmdir()
        (tmp_path / "output").write_text("in the way")
        picture_fails(server, "File exists")
        (tmp_path / "output").unlink()
        picture_is_saved(server, tmp_path / "output")


@pytest.mark.parametrize("tiny_disk", [1024], indirect=True)
def test_all_that_was_accepted_is_run_once_there_is_room_for_the_database(tiny_disk: Path) -> None:
    """The disk with queue, logs and temporary files fills up: a submission is accepted, or refused with 507; even the
    worker, ended meanwhile, starts again and runs without a byte to write.
    """
    with serving(tiny_disk) as server:
        server.run(text_document())
        server.post("/api/queue/pause")
        filler = fill(tiny_disk)
        accepted = []
        for number in range(1000):
            answer = server.call("POST", "/api/runs", {"document": text_document(f"{number} " + "x" * 5000)})
            if answer.status != 201:
                break
            accepted.append(answer.json["run"])
        (error,) = answer.json["errors"]
        assert (answer.status, error["code"]) == (507, "database_full")
        assert "free some space" in error["message"]
        worker = server.worker_pid()
        os.kill(worker, signal.SIGKILL)
        (other,) = wait_for(lambda: [pid for pid in children(server.process.pid) if pid != worker])
        live = server.post("/api/live", {"document": text_document("live")})["live_id"]  # it runs without the database
        wait_for(lambda: server.get(f"/api/live/{live}").get("shown"))
        server.post("/api/queue/resume")
        assert server.get("/api/queue/state")["queued"] >= len(accepted) - 1
        filler.unlink()
        assert all(server.get(f"/api/runs/{run}?wait=60")["state"] == "done" for run in accepted)
        assert server.run(text_document("after"))["state"] == "done"
        runs = [run["run"] for run in server.get("/api/runs?limit=1000")["runs"] if run["source"] == "api"]
        assert len(runs) == len(accepted) + 2
        assert server.worker_pid() == other
