"""Runs over our own API: create, wait, list, search, cancel, retry, delete, pause; saved workflows as endpoints."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.kit import Server, serving, template, text_document, wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that all tests here share."""
    with serving(tmp_path_factory.mktemp("runs")) as running:
        yield running


@pytest.fixture
def paused(server: Server) -> Iterator[Server]:
    """The server with its queue paused."""
    server.post("/api/queue/pause")
    yield server
    server.post("/api/queue/clear")
    server.post("/api/queue/resume")


def test_the_server_process_has_not_loaded_onnx_runtime_after_a_run(server: Server) -> None:
    """What a process has loaded stands in its memory map."""
    server.run(template("text-to-image", _9__steps=2))
    maps = {pid: Path(f"/proc/{pid}/maps").read_text() for pid in (server.process.pid, server.worker_pid())}
    assert "onnxruntime" not in maps[server.process.pid]
    assert "onnxruntime" in maps[server.worker_pid()]


def test_a_template_run_as_an_endpoint_answers_with_its_outputs(server: Server) -> None:
    answer = server.call("POST", "/api/workflows/text-to-image/run?wait=true", {"set": {"Denoise.steps": 3}})
    assert answer.status == 200
    run = answer.json
    assert (run["state"], run["name"], run["source"]) == ("done", "text-to-image", "workflow")
    assert run["document"]["nodes"]["9"]["inputs"]["steps"] == 3
    (output,) = run["outputs"]
    assert (server.data / "output" / output["path"]).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(run["step_seconds_by_loop"]["9"]) == 3


def test_a_saved_workflow_runs_and_is_not_changed_by_set(server: Server) -> None:
    document = text_document("kept")
    saved = server.call("PUT", "/api/workflows/mine/hello", {"document": document, "version": None})
    assert saved.status == 201
    run = server.post("/api/workflows/mine/hello/run?wait=true", {"set": {"1.text": "changed"}})
    assert [output["value"] for output in run["outputs"]] == ["changed"]
    assert server.get("/api/workflows/mine/hello")["document"] == document


def test_an_unknown_workflow_is_a_404_with_a_sentence(server: Server) -> None:
    answer = server.call("POST", "/api/workflows/nothing/run", {})
    assert answer.status == 404
    assert "'nothing'" in answer.json["errors"][0]["message"]


def test_all_problems_come_at_once(server: Server) -> None:
    document = template("text-to-image", _9__steps=0, _10__model="none.onnx")
    answer = server.call("POST", "/api/runs", {"document": document})
    assert answer.status == 422
    assert {(error["node"], error["input"]) for error in answer.json["errors"]} == {("9", "steps"), ("10", "model")}
    assert server.post("/api/check", {"document": document})["errors"] == answer.json["errors"]


def test_a_check_tells_the_loops_of_a_document(server: Server) -> None:
    """In preview-every-step the UNet leads back to Denoise; decoder and preview hang off it and feed nothing back."""
    document = template("preview-every-step")
    told = server.post("/api/check", {"document": document})
    titles = {node_id: node["_meta"]["title"] for node_id, node in document["nodes"].items()}
    assert told["errors"] == []
    (loop,) = told["loops"]
    assert (titles[loop["header"]], loop["parent"], loop["feedback"]) == ("Denoise", None, ["prediction"])
    assert "UNet" in {titles[node] for node in loop["body"]} - {titles[node] for node in loop["taps"]}
    assert {titles[node] for node in loop["taps"]} == {titles[node] for node in loop["body"]} - {"UNet"}
    broken = template("preview-every-step", _9__steps=-1)
    assert server.post("/api/check", {"document": broken})["loops"] == told["loops"]


def test_runs_are_found_by_text_node_type_and_state(server: Server) -> None:
    server.run(text_document("a needle in the hay"))
    found = server.get("/api/runs?text=NEEDLE+hay&node_type=ShowText&state=done")
    assert found["total"] == 1
    assert found["runs"][0]["outputs"][0]["value"] == "a needle in the hay"
    assert server.get("/api/runs?text=needle&node_type=DenoiseLoop")["total"] == 0
    assert server.get("/api/runs?text=needle&state=failed,queued")["total"] == 0


@pytest.mark.parametrize("query", ["state=lost", "order=best", "limit=0", "limit=x", "limit=5000", "offset=-1"])
def test_a_query_that_cannot_be_answered_is_a_400(server: Server, query: str) -> None:
    answer = server.call("GET", f"/api/runs?{query}")
    assert answer.status == 400
    assert "accepted" in answer.json["errors"][0]["message"]


def test_front_goes_first_and_the_paused_queue_waits(paused: Server) -> None:
    first, second = (paused.post("/api/runs", {"document": text_document(text)})["run"] for text in "ab")
    front = paused.post("/api/runs", {"document": text_document("c"), "front": True})["run"]
    assert paused.get("/api/queue/state") == {"running": 0, "queued": 3, "paused": True}
    assert [item[1] for item in paused.get("/queue")["queue_pending"]] == [front, first, second]
    paused.post("/api/queue/resume")
    ends = {run: paused.get(f"/api/runs/{run}?wait=true")["ended"] for run in (front, first, second)}
    assert sorted(ends, key=lambda run: ends[run]) == [front, first, second]


def test_a_cancelled_waiting_run_answers_whoever_waits_for_it(paused: Server) -> None:
    run = paused.post("/api/runs", {"document": text_document("waits")})["run"]
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(paused.get(f"/api/runs/{run}?wait=60")))
    waiting.start()
    assert paused.post(f"/api/runs/{run}/cancel") == {"cancelled": True}
    waiting.join(10)
    assert [answer["state"] for answer in answers] == ["cancelled"]
    assert paused.post(f"/api/runs/{run}/cancel") == {"cancelled": False}
    assert paused.get("/api/queue/state")["queued"] == 0


def test_a_run_in_hand_tells_its_progress_and_is_cancelled_inside_a_step(server: Server) -> None:
    run = server.post("/api/runs", {"document": template("text-to-image", _9__steps=1000)})["run"]
    progress = wait_for(lambda: server.get(f"/api/runs/{run}").get("progress", {}).get("nodes", {}).get("9"))
    assert (progress["state"], progress.get("steps", 1000)) == ("running", 1000)
    assert server.call("DELETE", f"/api/runs/{run}").status == 409
    assert server.post(f"/api/runs/{run}/cancel") == {"cancelled": True}
    assert server.get(f"/api/runs/{run}?wait=true")["state"] == "cancelled"
    assert server.call("DELETE", f"/api/runs/{run}").status == 204
    assert server.call("GET", f"/api/runs/{run}").status == 404


def test_a_retry_runs_the_same_document_with_changes(server: Server) -> None:
    first = server.run(text_document("again"))
    again = server.post(f"/api/runs/{first['run']}/retry?wait=true", {"set": {"1.text": "once more"}})
    assert again["run"] != first["run"]
    assert [output["value"] for output in again["outputs"]] == ["once more"]


def test_muted_nodes_do_not_run_whichever_api_asks(server: Server) -> None:
    document = text_document("heard")
    document["nodes"]["3"] = {"class_type": "ShowText", "inputs": {"text": "unheard"}, "mode": "mute"}
    assert [output["value"] for output in server.run(document)["outputs"]] == ["heard"]
    prompt_id = server.post("/prompt", {"prompt": document["nodes"]})["prompt_id"]
    run = server.get(f"/api/runs/{prompt_id}?wait=true")
    assert [output["value"] for output in run["outputs"]] == ["heard"]


def test_targets_run_only_what_they_need(server: Server) -> None:
    document = text_document("one")
    document["nodes"]["3"] = {"class_type": "ShowText", "inputs": {"text": "two"}}
    run = server.run(document, targets=["3"])
    assert [output["value"] for output in run["outputs"]] == ["two"]


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({}, "found no document"),
        ({"document": []}, "accepted an object"),
        ({"document": {"version": 99, "nodes": {}}}, "version 99"),
        ({"document": {"version": 1, "nodes": {"1": 5}}}, "accepted an object"),
        ({"document": text_document(), "set": []}, "accepted an object such as"),
        ({"document": text_document(), "set": {"1.nothing": 1}}, "does not have"),
        ({"document": text_document(), "targets": "2"}, "accepted a list"),
        ({"document": text_document(), "targets": ["9"]}, "found target '9'"),
        ({"document": {"version": 1, "nodes": {"1": {"class_type": "ShowTxt"}}}}, "did you mean ShowText"),
    ],
)
def test_a_bad_request_says_what_is_wrong(server: Server, body: dict[str, Any], part: str) -> None:
    answer = server.call("POST", "/api/runs", body)
    assert answer.status == 422
    assert part in " ".join(error["message"] for error in answer.json["errors"])


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"{", 400), (b"[]", 400), (b"\xff\xfe", 400), (b'{"a":' * 200 + b"1" + b"}" * 200, 400), (b"", 422)],
)
def test_bodies_that_are_no_object_are_refused(server: Server, data: bytes, status: int) -> None:
    answer = server.call("POST", "/api/runs", data)
    assert answer.status == status
    assert answer.json["errors"][0]["message"]


def test_metrics_tell_of_runs_nodes_sessions_and_the_queue(server: Server) -> None:
    server.run(template("text-to-image", _9__steps=2, _9__seed=12345))

    def values() -> dict[str, float]:
        lines = server.call("GET", "/metrics").body.decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    found = wait_for(lambda: (told := values())["ortloom_session_loads_total"] >= 3 and told)
    assert found['ortloom_runs_total{state="done"}'] >= 1
    assert found['ortloom_node_seconds_total{node_type="DenoiseLoop"}'] > 0
    assert found["ortloom_sessions"] >= 3
    assert found["ortloom_queue_depth"] == 0
    assert found["ortloom_cache_bytes"] > 0
    assert found["ortloom_worker_restarts_total"] == 0


def test_previews_of_a_run_are_files_that_can_be_viewed(server: Server) -> None:
    run = server.run(template("preview-every-step", _9__steps=2))
    preview = next(output for output in run["outputs"] if output["type"] == "preview")
    folder, _, name = preview["path"].rpartition("/")
    answer = server.call("GET", f"/view?filename={name}&subfolder={folder}&type={preview['folder']}")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "image/png")


def test_system_stats_tell_what_the_worker_runs_on(server: Server) -> None:
    """Tests run without a GPU: the CPU, and by device why the others are not used."""
    (device,) = wait_for(
        lambda: (found := server.get("/system_stats")["devices"])[0].get("why_not") is not None and found
    )
    assert (device["type"], device["index"]) == ("cpu", 0)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_lacks_are_refused_wherever_they_stand(server: Server, number: str) -> None:
    """Kept, they would make every later answer that holds them no JSON."""
    prompt = {"1": {"class_type": "ShowText", "inputs": {"text": "a"}, "_meta": {"p": "here"}}}
    body = json.dumps({"prompt": prompt}).replace('"here"', number)
    answer = server.call("POST", "/prompt", body.encode())
    assert answer.status == 400
    assert number in answer.json["errors"][0]["message"]
