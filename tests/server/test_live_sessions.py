"""Live sessions on the bundled model: latest wins, steered, settled, kept; no session is loaded again."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from app.server.app import make_app
from app.server.settings import ServerSettings
from tests.server.kit import Server, serving, template, wait_for
from tests.server.live_kit import pull


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that all tests here share."""
    with serving(tmp_path_factory.mktemp("live")) as running:
        yield running


def open_live(server: Server, document: dict[str, Any], **options: Any) -> str:
    """Open a session and wait for its first result."""
    answer = server.call("POST", "/api/live", {"document": document, "settle_ms": 50, **options})
    assert answer.status == 201, answer.body
    live_id: str = answer.json["live_id"]
    wait_for(lambda: server.get(f"/api/live/{live_id}").get("shown"))
    return live_id


def kept(server: Server, live_id: str, revision: int) -> dict[str, Any]:
    """Wait until a revision's result is settled and kept; return the state."""

    def state() -> dict[str, Any] | None:
        found: dict[str, Any] = server.get(f"/api/live/{live_id}")
        shown = found.get("shown")
        return found if shown and shown["revision"] == revision and shown["kept"] else None

    found: dict[str, Any] = wait_for(state)
    return found


def change(server: Server, live_id: str, **inputs: Any) -> int:
    """Change inputs of the loop titled Denoise; return the new revision."""
    body = {"set": {f"Denoise.{name}": value for name, value in inputs.items()}}
    answer = server.call("PATCH", f"/api/live/{live_id}", body)
    assert answer.status == 200, answer.body
    revision: int = answer.json["revision"]
    return revision


def wait_until_it_runs(server: Server, live_id: str) -> None:
    """Wait until a revision of hundreds of steps is among them: given to the worker a moment ago is not enough."""
    wait_for(lambda: server.get(f"/api/live/{live_id}")["state"] == "running")
    time.sleep(0.5)


def picture(server: Server, outputs: list[dict[str, Any]]) -> bytes:
    """Return the bytes of the only picture."""
    assert [output["folder"] for output in outputs] == ["output"]
    return (server.data / "output" / outputs[0]["path"]).read_bytes()


def test_what_settles_after_many_changes_is_what_a_fresh_run_gives(server: Server) -> None:
    """60 changes in 3 s: the result equals, byte for byte, a run of the final document with nothing cached."""
    draw = random.Random(3)
    changes = [
        draw.choice(
            (
                {"Denoise.cfg": round(draw.uniform(1, 7), 2)},
                {"Denoise.steps": draw.randint(10, 20)},
                {"Denoise.start_step": draw.randint(0, 9)},
            )
        )
        for _ in range(60)
    ]
    watched = asyncio.run(pull(server.url, template("text-to-image"), changes, 3.0))
    shown = watched.states[-1]["shown"]
    final: dict[str, Any] = {}
    for one in changes:
        final |= one
    document = server.get(f"/api/runs/{shown['run']}")["document"]
    assert {f"Denoise.{name}": document["nodes"]["9"]["inputs"][name] for name in ("cfg", "steps", "start_step")} == {
        "Denoise.start_step": 0,
        **final,
    }
    server.post("/free", {"unload_models": True, "free_memory": True})
    assert picture(server, shown["outputs"]) == picture(server, server.run(document)["outputs"])
    assert watched.most_runs_at_once() == 1
    assert len({state["session_loads"] for state in watched.states if state["revision"] > 1}) == 1
    assert all((state["running_revision"] or 0) <= state["revision"] for state in watched.states)


def test_cfg_acts_within_the_running_loop_and_is_settled_afterwards(server: Server) -> None:
    """The change arrives in a run of 400 steps: events say from which step on; the run is not begun again."""
    document = template("text-to-image", _9__steps=400)
    live_id = open_live(server, document)
    change(server, live_id, seed=8)
    wait_until_it_runs(server, live_id)
    revision = change(server, live_id, cfg=2.0)
    state = server.get(f"/api/live/{live_id}")
    assert (state["running_revision"], state["waiting_revision"]) == (revision, None)
    state = kept(server, live_id, revision)
    assert state["shown"]["settled"] is True
    assert state["session_loads"] <= 3
    server.call("DELETE", f"/api/live/{live_id}")


def test_steps_and_seed_end_the_running_revision_at_once(server: Server) -> None:
    """A loop of 100,000 steps would take 20 minutes: the next revision shows long before."""
    live_id = open_live(server, template("text-to-image"))
    change(server, live_id, steps=1000, seed=9)
    wait_until_it_runs(server, live_id)
    revision = change(server, live_id, steps=3)
    state = kept(server, live_id, revision)
    assert state["shown"]["settled"] is True
    history = server.get(f"/api/runs?text={live_id}")
    assert history["total"] == 0
    server.call("DELETE", f"/api/live/{live_id}")


def test_superseded_results_leave_no_files_and_no_history(server: Server) -> None:
    before = server.get("/api/runs?limit=1000")["total"]
    files = {path.name for path in (server.data / "output").iterdir()}
    live_id = open_live(server, template("text-to-image", _9__steps=2, _9__seed=100))
    revision = 0
    for seed in range(101, 111):
        revision = change(server, live_id, seed=seed)
    kept(server, live_id, revision)
    # The first revision may have been kept too, when it was quiet for long enough.
    assert server.get("/api/runs?limit=1000")["total"] - before in (1, 2)
    assert len({path.name for path in (server.data / "output").iterdir()} - files) in (1, 2)
    assert server.call("DELETE", f"/api/live/{live_id}").status == 204
    assert not (server.data / "temp" / "live" / live_id).exists()


@pytest.mark.parametrize(
    ("changes", "node_input", "part"),
    [
        ({"Denoise.start_step": 20}, "start_step", "0 to 19"),
        ({"Denoise.steps": 0}, "steps", "accepted"),
        ({"Denoise.cfg": "much"}, "cfg", "accepted a number"),
        ({"Denoise.cfg": 1e9}, "cfg", "accepted a number"),
        ({"Denoise.cg": 2}, "cg", "did you mean cfg?"),
        ({"Denoise.prediction": 2}, "prediction", "wired"),
        ({"Nobody.cfg": 2}, "", "found no node 'Nobody'"),
        ({"cfg": 2}, "", "accepted NODE.INPUT"),
    ],
)
def test_a_change_that_cannot_be_is_refused_and_changes_nothing(
    server: Server, changes: dict[str, Any], node_input: str, part: str
) -> None:
    """The rules of live sessions: the sentence names the input, what was found and what is accepted."""
    live_id = open_live(server, template("text-to-image"))
    before = server.get(f"/api/live/{live_id}")
    answer = server.call("PATCH", f"/api/live/{live_id}", {"set": {"Denoise.seed": 5, **changes}})
    assert answer.status == 422
    problem = answer.json["errors"][0]
    assert problem["input"] == node_input
    assert part in problem["message"]
    after = server.get(f"/api/live/{live_id}")
    assert (after["revision"], after["document"]) == (before["revision"], before["document"])
    server.call("DELETE", f"/api/live/{live_id}")


def test_cfg_other_than_1_needs_a_guidance_pair(server: Server) -> None:
    document = template("text-to-image", _9__cfg=1.0)
    document["nodes"]["6"]["inputs"]["input_ids"] = ["2", "input_ids"]
    live_id = open_live(server, document)
    answer = server.call("PATCH", f"/api/live/{live_id}", {"set": {"Denoise.cfg": 3.0}})
    assert answer.status == 422
    assert "pair" in answer.json["errors"][0]["message"]
    server.call("DELETE", f"/api/live/{live_id}")


def test_a_rewired_document_replaces_the_old_one(server: Server) -> None:
    live_id = open_live(server, template("text-to-image", _9__steps=2))
    answer = server.call("PUT", f"/api/live/{live_id}", {"document": template("preview-every-step", _9__steps=3)})
    assert answer.status == 200
    state = kept(server, live_id, answer.json["revision"])
    assert {output["type"] for output in state["shown"]["outputs"]} == {"image", "preview"}
    broken = server.call("PUT", f"/api/live/{live_id}", {"document": {"version": 1, "nodes": {}}})
    assert broken.status == 422
    assert server.get(f"/api/live/{live_id}")["revision"] == answer.json["revision"]
    server.call("DELETE", f"/api/live/{live_id}")


def test_settle_false_leaves_a_steered_result_as_it_is(server: Server) -> None:
    live_id = open_live(server, template("text-to-image"), settle=False)
    change(server, live_id, steps=399)  # a number that no other test has cached
    wait_until_it_runs(server, live_id)
    change(server, live_id, cfg=1.5)
    wait_for(lambda: server.get(f"/api/live/{live_id}")["state"] in ("steered", "settled"))
    state = server.get(f"/api/live/{live_id}")
    assert (state["state"], state["shown"]["settled"], state["shown"]["kept"]) == ("steered", False, False)
    server.call("DELETE", f"/api/live/{live_id}")


def test_a_failing_revision_says_why_and_the_next_one_runs(tmp_path: Path) -> None:
    """The worker dies in the first session call after the change: the session goes on with a new worker."""
    with serving(tmp_path) as server:
        live_id = open_live(server, template("text-to-image"))
        change(server, live_id, steps=1000)
        wait_until_it_runs(server, live_id)
        os.kill(server.worker_pid(), signal.SIGKILL)
        wait_for(lambda: server.get(f"/api/live/{live_id}")["state"] == "failed")
        assert "SIGKILL" in server.get(f"/api/live/{live_id}")["problems"][0]["message"]
        state = kept(server, live_id, change(server, live_id, steps=4))
        assert "models were loaded after the first revision" in state["note"]


def test_live_revisions_go_before_queued_runs(server: Server) -> None:
    live_id = open_live(server, template("text-to-image", _9__seed=70))
    slow = template("text-to-image", _9__steps=60)
    for seed in range(5):
        slow["nodes"]["9"]["inputs"]["seed"] = 1000 + seed
        server.post("/api/runs", {"document": slow})
    state = kept(server, live_id, change(server, live_id, seed=71))
    assert state["shown"]["settled"] is True
    assert server.get("/api/queue/state")["queued"] > 0
    server.post("/api/queue/clear")
    server.call("DELETE", f"/api/live/{live_id}")


def test_a_session_over_the_websocket_ends_with_its_message(server: Server) -> None:
    async def talk() -> list[dict[str, Any]]:
        heard: list[dict[str, Any]] = []
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(f"{server.url}/api/events?client_id=talker") as socket,
        ):

            async def answer(message: dict[str, Any]) -> dict[str, Any]:
                await socket.send_json(message)
                while True:
                    for event in json.loads((await socket.receive(30)).data)["events"]:
                        heard.append(event)
                        if event["type"] in ("reply", "error") and event["ref"] == message["ref"]:
                            return event

            opened = await answer({"type": "live.open", "ref": 1, "document": template("text-to-image")})
            live_id = opened["live_id"]
            await answer({"type": "live.set", "ref": 2, "live_id": live_id, "set": {"Denoise.steps": 2}})
            await answer({"type": "live.set", "ref": "three", "live_id": live_id, "set": {"Denoise.steps": -2}})
            await answer({"type": "live.close", "ref": 4, "live_id": live_id})
            await answer({"type": "live.set", "ref": 5, "live_id": live_id, "set": {"Denoise.steps": 2}})
            await answer({"type": "dance", "ref": 6})
            await socket.send_str("no json")
            while heard[-1] != {"type": "error", "ref": None, "errors": heard[-1].get("errors")}:
                heard.extend(json.loads((await socket.receive(30)).data)["events"])
        return [event for event in heard if event["type"] in ("reply", "error")]

    events = asyncio.run(talk())
    assert [event["type"] for event in events] == ["reply", "reply", "error", "reply", "error", "error", "error"]
    assert events[1]["revision"] == 2
    assert events[2]["errors"][0]["input"] == "steps"
    assert "no live session" in events[4]["errors"][0]["message"]
    assert "accepted subscribe" in events[5]["errors"][0]["message"]


def test_a_session_ends_some_time_after_its_client_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time, 60 s, is shortened; a client that stays connected keeps its session however long it says nothing."""
    monkeypatch.setattr("app.server.live.IDLE_S", 0.5)
    monkeypatch.setattr("app.server.live.LOOK_S", 0.1)

    async def work() -> tuple[int, int]:
        document = template("text-to-image", _9__steps=1)
        async with TestClient(TestServer(make_app(ServerSettings(tmp_path)))) as client:
            kept = await client.ws_connect("/api/events?client_id=stays")
            ids = []
            for client_id in ("stays", "gone"):
                body = {"document": document, "client_id": client_id}
                async with client.post("/api/live", json=body) as answer:
                    assert answer.status == 201, await answer.text()
                    ids.append((await answer.json())["live_id"])
            await asyncio.sleep(1.5)
            statuses = [(await client.get(f"/api/live/{live_id}")).status for live_id in ids]
            await kept.close()
            return statuses[0], statuses[1]

    assert asyncio.run(work()) == (200, 404)
