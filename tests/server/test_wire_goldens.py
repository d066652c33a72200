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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.kit import Server, serving
from tests.server.wire_kit import (
    NODES,
    RECORDED,
    exchange,
    message_keys,
    new_client,
    recorded,
    shape,
    texts,
    types,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the node types of the recordings."""
    with serving(tmp_path_factory.mktemp("wire"), "--custom-nodes", NODES) as running:
        yield running


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
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own for the recordings that depend on what is cached."""
    with serving(tmp_path_factory.mktemp("fresh"), "--custom-nodes", NODES) as running:
        yield running


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
