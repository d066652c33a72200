"""What a running ComfyUI 0.27.1 was recorded to answer and to send holds here, in names, shapes and order.

Where we differ, and why:
- async_nodes, expansion and blocked were recorded with nodes that run at once, that grow into others and that stop what
  follows them; there are no such nodes here.
- exec_error: ComfyUI asks for a node's lazy inputs when it is about to run, here all inputs come before it.
- `traceback` and `current_inputs` of an error are empty: they hold paths and data of the server.
- partial_targets and v_partial_good were recorded with other nodes cached than a server that has just started has.
- Previews may come before or after the messages of their step, and some may be left out: no run waits for them. What a
  loop showed last is kept as a picture, which one more `executed` tells.
- Binary event 3, a node's text in the middle of its work, has nobody here that sends it.
- v_custom: what a custom node checks itself is found in the worker, where its code is: the prompt is taken, and its run
  fails with the sentence of the check. A built-in node's check refuses the prompt as recorded (test_prompt_errors.py).
- A prompt that is a list gives 400, not 500; bodies that ComfyUI leaves empty are `{}`.
- Our SaveImage and PreviewImage call their input `image`, ComfyUI's `images`.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from app.server.app import COMFY_ROUTES
from tests.server.kit import Server, serving, wait_for

RECORDED = Path(__file__).parent / "data" / "comfy-wire"
NODES = str(Path(__file__).parent / "wire_nodes")


def recorded(name: str) -> dict[str, Any]:
    """Return one recorded exchange, its inputs called as ours are."""

    def renamed(found: dict[str, Any]) -> dict[str, Any]:
        inputs = found.get("inputs")
        if "class_type" in found and isinstance(inputs, dict) and "images" in inputs:
            inputs["image"] = inputs.pop("images")
        return found

    exchange: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text(), object_hook=renamed)
    return exchange


def recorded_refusal(path: Path) -> dict[str, Any]:
    """Return the answer of a recorded exchange if it is a refusal as JSON, else nothing."""
    exchange: dict[str, Any] = json.loads(path.read_text())
    return exchange["response"] if exchange["status"] == 400 else {}


def kinds(refusal: dict[str, Any]) -> Any:
    """Return what a refusal says, without the words and the schema of each input."""
    nodes = {
        node: (entry["class_type"], entry["dependent_outputs"], [shape_of_fault(fault) for fault in entry["errors"]])
        for node, entry in refusal["node_errors"].items()
    }
    return refusal["error"]["type"], refusal["error"]["message"], refusal["error"]["extra_info"], nodes


def shape_of_fault(fault: dict[str, Any]) -> tuple[str, str, set[str], set[str]]:
    """Return the type, the message and the keys of one node's error."""
    return fault["type"], fault["message"], set(fault), set(fault["extra_info"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the node types of the recordings."""
    with serving(tmp_path_factory.mktemp("wire"), "--custom-nodes", NODES) as running:
        yield running


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own for the recordings that depend on what is cached."""
    with serving(tmp_path_factory.mktemp("fresh"), "--custom-nodes", NODES) as running:
        yield running


async def exchange(server: Server, request: dict[str, Any], flags: bool = False) -> tuple[dict[str, Any], list[Any]]:
    """Send a prompt; return the answer and every frame until the end mark, texts as JSON and binary ones as bytes."""
    frames: list[Any] = []
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{server.url}/ws?clientId={request['client_id']}") as socket,
    ):
        frames.append(json.loads((await socket.receive(10)).data))
        if flags:
            await socket.send_json({"type": "feature_flags", "data": {"supports_preview_metadata": True}})
            frames.append(json.loads((await socket.receive(10)).data))
        async with http.post(f"{server.url}/prompt", json=request) as response:
            answer = await response.json()
        while "error" not in answer:
            frame = await socket.receive(30)
            frames.append(frame.data if frame.type is aiohttp.WSMsgType.BINARY else json.loads(frame.data))
            if isinstance(frames[-1], dict) and frames[-1]["type"] == "executing" and not frames[-1]["data"]["node"]:
                break
    return answer, frames


def types(frames: list[Any]) -> list[str]:
    """Return the message types in order; a binary frame is `binary`."""
    return [frame["type"] if isinstance(frame, dict) and "type" in frame else "binary" for frame in frames]


def shape(value: Any) -> Any:
    """Return names and types; objects keyed by ids count by what they hold, lists of ids are equal at any length."""
    if isinstance(value, dict):
        if value and all(key.isdecimal() or len(key) == 36 for key in value):
            return [shape(item) for item in value.values()]
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return "ids" if all(isinstance(item, str) for item in value) else [shape(item) for item in value]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def texts(frames: list[Any]) -> list[dict[str, Any]]:
    """Return the frames that are no binary ones."""
    return [frame for frame in frames if isinstance(frame, dict) and "type" in frame]


def message_keys(frames: list[Any]) -> dict[str, set[str]]:
    """Return the keys of every message type's data."""
    found: dict[str, set[str]] = {}
    for frame in texts(frames):
        found.setdefault(frame["type"], set()).update(frame["data"])
    return found


def is_at_a_node(server: Server) -> bool:
    """Return whether some node runs now."""
    jobs = server.get("/api/jobs?status=in_progress")["jobs"]
    runs = [server.get(f"/api/runs/{job['id']}") for job in jobs]
    return any(run.get("progress", {}).get("current") for run in runs)


def new_client(request: dict[str, Any]) -> dict[str, Any]:
    """Return a request from a client of its own."""
    return {**request, "client_id": str(uuid.uuid4())}


@pytest.mark.parametrize(
    "name", ["ok_save", "ok_save_cached", "ok_preview_image", "partial_targets", "v_partial_good", "v_client_prompt_id"]
)
def test_an_exchange_is_as_recorded(fresh: Server, name: str) -> None:
    """Answer, messages in their order, history entry and job; run in this order, for what is cached depends on it."""
    golden = recorded(name)
    answer, frames = asyncio.run(exchange(fresh, golden["request"]))
    if name == "v_partial_good":  # what the error says of the input's schema has keys of ours, e.g. a tooltip
        assert set(answer) == set(golden["response"])
        assert list(answer["node_errors"]) == list(golden["response"]["node_errors"])
    else:
        assert shape(answer) == shape(golden["response"])
    expected = types(golden["ws"])
    if name in ("v_partial_good", "partial_targets"):  # recorded when other nodes were cached than here
        assert types(frames)[-3:] == expected[-3:]
        assert types(frames)[:5] == expected[:5]
    else:
        assert types(frames) == expected
    ours, theirs = message_keys(frames), message_keys(golden["ws"])
    assert all(keys <= theirs[kind] for kind, keys in ours.items())
    assert ours == theirs or types(frames) != expected
    run = answer["prompt_id"]
    (entry,) = fresh.get(f"/history/{run}").values()
    (golden_entry,) = golden["history"].values()
    assert shape(entry) == shape(golden_entry)
    job = fresh.get(f"/api/jobs/{run}")
    assert shape(job) == shape(golden["job"])
    if name == "v_client_prompt_id":
        assert run == golden["request"]["prompt_id"]


REFUSED = sorted(path.stem for path in RECORDED.glob("v_*.json") if "error" in recorded_refusal(path))
REFUSED.remove("v_custom")


@pytest.mark.parametrize("name", REFUSED)
def test_a_prompt_is_refused_as_recorded(server: Server, name: str) -> None:
    """Status, error and the kind of every node's errors; the socket hears nothing. Details: test_prompt_errors.py."""
    golden = recorded(name)
    answer, frames = asyncio.run(exchange(server, golden["request"]))
    assert types(frames) == types(golden["ws"]) == ["status"]
    assert kinds(answer) == kinds(golden["response"])
    again = server.call("POST", "/api/prompt", golden["request"])
    assert (again.status, again.json) == (golden["status"], answer)


def test_a_run_that_fails_is_told_as_recorded(server: Server) -> None:
    golden = recorded("exec_error")
    answer, frames = asyncio.run(exchange(server, golden["request"]))
    assert types(frames)[-4:] == types(golden["ws"])[-4:] == ["executing", "execution_error", "status", "executing"]
    error, golden_error = (
        next(frame["data"] for frame in told if isinstance(frame, dict) and frame.get("type") == "execution_error")
        for told in (frames, golden["ws"])
    )
    assert set(error) == set(golden_error)
    assert (error["node_id"], error["node_type"]) == (golden_error["node_id"], golden_error["node_type"])
    assert set(error["executed"]) == {"1", "2", "3"}
    (entry,) = server.get(f"/history/{answer['prompt_id']}").values()
    (golden_entry,) = golden["history"].values()
    assert set(entry) == set(golden_entry)
    assert entry["status"]["status_str"] == "error"
    assert [kind for kind, _ in entry["status"]["messages"]] == [kind for kind, _ in golden_entry["status"]["messages"]]
    job = server.get(f"/api/jobs/{answer['prompt_id']}")
    assert set(job) == set(golden["job"])


def without_previews(frames: list[Any]) -> list[str]:
    """Return the message types in order without binary frames and without the `executed` of a kept preview."""
    return [
        frame["type"]
        for frame in texts(frames)
        if frame["type"] != "executed" or list(frame["data"]["output"]) != ["images"]
    ]


def steps(frames: list[Any]) -> list[tuple[float, float]]:
    """Return what the progress messages counted."""
    told = [frame["data"] for frame in texts(frames) if frame["type"] == "progress"]
    return [(data["value"], data["max"]) for data in told]


def test_what_a_custom_node_checks_itself_fails_its_run(server: Server) -> None:
    """The messages of a run that fails, with the sentence of the check."""
    golden = recorded("v_custom")
    _, frames = asyncio.run(exchange(server, golden["request"]))
    began, ended = ["execution_start", "execution_cached"], ["execution_error", "status", "executing"]
    assert types(frames) == ["status", "status", "status", *began, *ended]
    error = frames[5]["data"]
    assert error["exception_message"].endswith("found 7, accepted another number; choose one")
    assert (error["node_id"], list(error["current_inputs"])) == ("1", ["input2"])


@pytest.mark.parametrize("name", ["noflags_preview2", "flags_preview_meta", "noflags_preview"])
def test_previews_and_progress_are_as_recorded(fresh: Server, name: str) -> None:
    """Messages in order; run in this order, for the last prompt was recorded with its node cached."""
    golden = recorded(name)
    _, frames = asyncio.run(exchange(fresh, golden["request"], name.startswith("flags")))
    assert without_previews(frames) == without_previews(golden["ws"])
    assert message_keys(frames) == message_keys(golden["ws"])
    assert steps(frames) == steps(golden["ws"])


@pytest.mark.parametrize("flags", [False, True])
def test_a_preview_frame_has_the_recorded_header(server: Server, flags: bool) -> None:
    """Without flags 4 bytes of event 1, 4 bytes of type 1, JPEG; with them event 4, length, JSON, picture."""
    golden = recorded("flags_preview_meta" if flags else "noflags_preview2")
    request = {"prompt": {"7": {"class_type": "ProbePreview", "inputs": {"n": 4 + flags}}}}
    answer, frames = asyncio.run(exchange(server, new_client(request), flags))
    pictures = [frame for frame in frames if isinstance(frame, bytes)]
    head = next(bytes.fromhex(frame["hex_head"]) for frame in golden["ws"] if "hex_head" in frame)
    assert pictures
    for picture in pictures:
        if not flags:
            assert picture[:10] == head[:10]
            continue
        assert picture[:4] == head[:4]
        length = int.from_bytes(picture[4:8], "big")
        about = json.loads(picture[8 : 8 + length])
        assert about == {
            "node_id": "7",
            "prompt_id": answer["prompt_id"],
            "display_node_id": "7",
            "parent_node_id": None,
            "real_node_id": "7",
            "image_type": "image/jpeg",
        }
        # The recorded head ends within the JSON.
        assert all(json.dumps(key).encode() in head for key in list(about)[:5])
        assert picture[8 + length :][:2] == b"\xff\xd8"


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


def test_two_sockets_of_one_client_both_hear_and_one_may_leave(server: Server) -> None:
    """In ComfyUI the older one, closing, takes the newer one's messages with it."""

    async def work() -> None:
        async with aiohttp.ClientSession() as http:
            first = await http.ws_connect(f"{server.url}/ws?clientId=twice")
            second = await http.ws_connect(f"{server.url}/ws?clientId=twice")
            prompt = {"1": {"class_type": "ProbeBusy", "inputs": {"seconds": 0.0, "salt": "twice"}}}
            body = {"prompt": prompt, "client_id": "twice"}
            for sockets in ((first, second), (second,)):
                async with http.post(f"{server.url}/prompt", json=body) as answer:
                    assert answer.status == 200
                for socket in sockets:
                    while True:
                        told = json.loads((await socket.receive(10)).data)
                        if told["type"] == "executing" and told["data"]["node"] is None:
                            break
                await first.close()
            await second.close()

    asyncio.run(work())


def test_a_client_that_joins_in_the_middle_hears_what_runs_and_the_rest(server: Server) -> None:
    async def work() -> list[str]:
        async with aiohttp.ClientSession() as http:
            prompt = {"1": {"class_type": "ProbeBusy", "inputs": {"seconds": 1.0, "salt": "joined"}}}
            async with http.post(f"{server.url}/prompt", json={"prompt": prompt, "client_id": "late"}):
                pass
            await asyncio.to_thread(wait_for, lambda: is_at_a_node(server))
            heard = []
            async with http.ws_connect(f"{server.url}/ws?clientId=late") as socket:
                while len(heard) < 3 or heard[-1] != ("executing", None):
                    told = json.loads((await socket.receive(10)).data)
                    heard.append((told["type"], told["data"].get("node")))
            return [kind for kind, _ in heard]

    heard = asyncio.run(work())
    assert heard[:2] == ["status", "executing"]
    assert "executed" in heard
    assert heard[-3:] == ["execution_success", "status", "executing"]


SERVED = [
    *("/prompt", "/queue", "/history", "/history/x", "/object_info", "/object_info/None", "/embeddings", "/models"),
    *("/system_stats", "/features", "/extensions", "/users", "/settings", "/settings/x", "/v2/userdata", "/i18n"),
    *("/workflow_templates", "/global_subgraphs", "/node_replacements", "/experiment/models"),
]


@pytest.mark.parametrize("path", [*SERVED, *(f"/api{path}" for path in SERVED), "/internal/logs", "/internal/logs/raw"])
def test_what_clients_ask_for_is_never_missing(server: Server, path: str) -> None:
    answer = server.call("GET", path)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8" or path == "/internal/logs"
    json.loads(answer.body)


def test_every_route_of_comfyui_exists_under_api_too(server: Server) -> None:
    """A request without what it needs may be refused, but not with a route's 404."""
    for module in COMFY_ROUTES:
        for route in module.routes:
            path = getattr(route, "path", "")
            if path.startswith("/internal") or route.method == "*":  # type: ignore[attr-defined]
                continue
            concrete = path.replace("{file:.+}/move/{dest:.+}", "a/move/b").replace("{file:.+}", "a")
            concrete = "/".join("x" if part.startswith("{") else part for part in concrete.split("/"))
            answer = server.call(route.method, f"/api{concrete}", b"" if route.method != "GET" else None)  # type: ignore[attr-defined]
            assert b"found no route" not in answer.body, (route, answer)
            assert answer.status != 405


def test_posts_that_comfyui_answers_empty_are_answered_with_an_object(server: Server) -> None:
    for path in ("/queue", "/history", "/interrupt", "/free", "/settings"):
        assert server.post(path, {}) == {}
