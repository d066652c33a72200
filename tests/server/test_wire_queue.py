"""Queue, history and interrupts as they were recorded with ComfyUI 0.27.1."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.kit import Server, serving, wait_for
from tests.server.wire_kit import (
    NODES,
    exchange,
    is_at_a_node,
    new_client,
    recorded,
    shape,
    types,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the node types of the recordings."""
    with serving(tmp_path_factory.mktemp("wire"), "--custom-nodes", NODES) as running:
        yield running


def test_the_queue_is_ordered_and_emptied_as_recorded(server: Server) -> None:
    """A runs; B, C, D (front) and E (number -0.5) wait: D, E, B, C. One is deleted, the rest cleared."""
    golden = recorded("queue")
    item = {"class_type": "ProbeBusy", "inputs": {"seconds": 20.0, "salt": 101}}
    first = server.post("/prompt", {"prompt": {"1": item}, "client_id": "queue"})
    assert shape(first) == shape(golden["posts"][0])
    running, number = first["prompt_id"], first["number"]
    wait_for(lambda: server.get("/queue")["queue_running"])
    bodies: dict[str, dict[str, Any]] = {"b": {}, "c": {}, "d": {"front": True}, "e": {"number": -0.5}}
    ids, numbers = {}, []
    for salt, extra in bodies.items():
        prompt = {"1": {"class_type": "ProbeBusy", "inputs": {"seconds": 0.0, "salt": salt}}}
        answer = server.post("/prompt", {"prompt": prompt, "client_id": "queue", **extra})
        ids[answer["prompt_id"]] = salt
        numbers.append(answer["number"])
    assert numbers == [number + 1, number + 2, -(number + 3), -0.5]
    queue = server.get("/queue")
    assert shape(queue["queue_running"]) == shape(golden["queue"]["queue_running"])
    waiting = {job["id"]: job for job in server.get("/api/jobs?status=pending")["jobs"]}
    assert set(waiting) == set(ids)
    golden_job = next(job for job in golden["jobs"]["jobs"] if job["status"] == "pending")
    assert all(shape(job) == shape(golden_job) for job in waiting.values())
    assert all((job["status"], job["outputs_count"]) == ("pending", 0) for job in waiting.values())
    (job,) = server.get("/api/jobs?status=in_progress")["jobs"]
    assert set(job) - {"execution_start_time"} == set(golden_job)
    assert [len(entry) for entry in queue["queue_pending"]] == [5, 5, 5, 5]
    assert [ids[entry[1]] for entry in queue["queue_pending"]] == ["d", "e", "b", "c"]
    second = next(run for run, salt in ids.items() if salt == "c")
    assert server.post("/queue", {"delete": [second, "unknown"]}) == {}
    assert [ids[entry[1]] for entry in server.get("/queue")["queue_pending"]] == ["d", "e", "b"]
    server.post("/interrupt", {"prompt_id": "another"})
    assert server.get("/queue")["queue_running"]
    server.post("/interrupt", {"prompt_id": running})
    entry = wait_for(lambda: server.get(f"/history/{running}").get(running))
    (golden_entry,) = golden["interrupt_history"].values()
    assert shape(entry["status"]) == shape(golden_entry["status"])
    job = server.get(f"/api/jobs/{running}")
    assert set(job) == set(golden["job_interrupted"])
    assert job["status"] == "cancelled"
    jobs = server.get("/api/jobs?limit=3")
    assert set(jobs["pagination"]) == set(golden["jobs"]["pagination"])
    server.post("/queue", {"clear": True})
    assert server.get("/queue")["queue_pending"] == []


def test_a_run_is_in_the_queue_or_else_in_the_history(server: Server) -> None:
    """comfyui-utils takes a run that it finds in neither for an error; its turn must not hide a run."""
    for number in range(40):
        prompt = {"1": {"class_type": "ProbeBusy", "inputs": {"seconds": 0.0, "salt": f"place {number}"}}}
        run = server.post("/prompt", {"prompt": prompt})["prompt_id"]
        is_queued = True
        while is_queued:
            queue = server.get("/queue")
            is_queued = run in [item[1] for items in queue.values() for item in items]
        assert list(server.get(f"/history/{run}")) == [run]


def test_an_interrupted_run_is_told_as_recorded(server: Server) -> None:
    """The end of a run that `/interrupt` ends, and a client that hears it."""
    golden = recorded("queue")
    item = {"class_type": "ProbeBusy", "inputs": {"seconds": 20.0, "salt": 106}}

    async def work() -> list[Any]:
        request = new_client({"prompt": {"1": item}})
        hearing = asyncio.create_task(exchange(server, request))
        await asyncio.to_thread(wait_for, lambda: is_at_a_node(server))
        await asyncio.to_thread(server.post, "/interrupt", {})
        return (await hearing)[1]

    frames = asyncio.run(work())
    place = types(golden["ws"]).index("execution_interrupted")
    assert types(frames)[-3:] == types(golden["ws"])[place : place + 3]
    assert shape(frames[-3:]) == shape(golden["ws"][place : place + 3])
    assert frames[-3]["data"]["node_type"] == "ProbeBusy"


def test_history_is_cut_as_comfyui_cuts_it(server: Server) -> None:
    """max_items alone: the newest; offset counts from the oldest; POST deletes one or all."""
    server.post("/history", {"clear": True})
    runs = []
    for number in range(4):
        prompt = {"1": {"class_type": "ProbeBusy", "inputs": {"seconds": 0.0, "salt": number}}}
        runs.append(server.post("/prompt", {"prompt": prompt})["prompt_id"])
        wait_for(lambda: server.get(f"/history/{runs[-1]}"))
    assert list(server.get("/history")) == runs
    assert list(server.get("/history?max_items=2")) == runs[-2:]
    assert list(server.get("/history?max_items=2&offset=1")) == runs[1:3]
    assert server.post("/history", {"delete": [runs[0]]}) == {}
    assert list(server.get("/history")) == runs[1:]
    assert server.call("GET", "/history?max_items=many").status == 400
