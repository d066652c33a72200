"""/object_info: our node types in ComfyUI's schema."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from app.graph.node import Array, Help, NodeType, Out, Range, node
from app.server.comfy.input_config import FileNames
from app.server.comfy.object_info import object_info, routes
from app.server.keys import NODES, SETTINGS
from app.server.settings import ServerSettings
from nodes import builtin_registry
from tests.server.kit import library

KEYS = {
    "input", "input_order", "is_input_list", "output", "output_is_list", "output_name", "name", "display_name",
    "description", "python_module", "category", "output_node", "has_intermediate_output", "search_aliases",
}  # fmt: skip
"""Keys of every entry of ComfyUI 0.27.1's answer."""


@node(category="test", output_node=True)
def widgets(
    tensor: Annotated[Array, Help("What to show")],
    picture: Annotated[str, Help("A file", widget="image", literal_only=True)],
    seed: Annotated[int, Range(0, 2**64 - 1, 1, help="Noise.", widget="seed")] = 0,
    cfg: Annotated[float, Range(0.0, 30.0, 0.1, help="Scale", role="steerable")] = 7.5,
    text: Annotated[str, Help("", widget="multiline")] = "",
    choice: Annotated[Literal["red", "green"], Help("Colour")] = "red",
    flag: Annotated[bool, Help("Yes or no")] = True,
) -> Annotated[int, Out("count", "How many")]:
    """Hold widgets."""
    return 1


def test_widgets_and_ranges_are_spelt_as_comfyui_spells_them() -> None:
    """Option names from ComfyUI's schema; a list of choices is the type itself, as old clients read it."""
    node_type: NodeType = widgets.node_type  # type: ignore[attr-defined]
    info = object_info(node_type, FileNames(images=("a.png", "b.png")))
    assert info["input"] == {
        "required": {
            "tensor": ["TENSOR", {"tooltip": "What to show."}],
            "picture": [["a.png", "b.png"], {"image_upload": True, "socketless": True, "tooltip": "A file."}],
        },
        "optional": {
            "seed": [
                "INT",
                {"default": 0, "min": 0, "max": 2**64 - 1, "step": 1,
                 "control_after_generate": True, "tooltip": "Noise."},
            ],
            "cfg": [
                "FLOAT",
                {"default": 7.5, "min": 0.0, "max": 30.0, "step": 0.1,
                 "tooltip": "Scale. Read again on every step of the loop."},
            ],
            "text": ["STRING", {"default": "", "multiline": True}],
            "choice": [["red", "green"], {"default": "red", "tooltip": "Colour."}],
            "flag": ["BOOLEAN", {"default": True, "tooltip": "Yes or no."}],
        },
    }  # fmt: skip
    assert info["input_order"]["required"] == ["tensor", "picture"]
    assert (info["output"], info["output_name"], info["output_is_list"]) == (["INT"], ["count"], [False])
    assert (info["name"], info["display_name"], info["output_node"]) == ("Widgets", "Widgets", True)


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("nodes.image", "nodes.image"),
        ("mine.py:custom_nodes_1a2b_mine", "custom_nodes.mine"),
        ("pack:p.q", "custom_nodes.pack"),
    ],
)
def test_clients_can_tell_the_library_from_extensions(source: str, module: str) -> None:
    """ComfyUI's frontend reads the origin of a node from the first part of `python_module`."""
    assert object_info(replace(widgets.node_type, source=source))["python_module"] == module  # type: ignore[attr-defined]


def answers(tmp_path: Path, *paths: str) -> list[Any]:
    """Return the status and JSON of GET requests to a server on a new data folder."""
    settings = ServerSettings(tmp_path)
    settings.make_folders()
    (settings.input / "deep").mkdir()
    (settings.input / "deep" / "cat.PNG").write_bytes(b"")
    (settings.input / "notes.txt").write_bytes(b"")
    (settings.data / "models" / "own.onnx").write_bytes(b"")
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"")
    (settings.input / "link.png").symlink_to(secret)

    async def ask() -> list[Any]:
        app = web.Application()
        app[SETTINGS], app[NODES] = settings, library(settings.folders)
        app.add_routes(routes)
        async with TestClient(TestServer(app)) as client:
            replies = [await client.get(path) for path in paths]
            return [(reply.status, await reply.json()) for reply in replies]

    return asyncio.run(ask())


def test_every_node_type_is_listed_with_every_key(tmp_path: Path) -> None:
    """Names come from the registry itself, keys from ComfyUI."""
    ((status, listed),) = answers(tmp_path, "/object_info")
    assert status == 200
    registry = builtin_registry(ServerSettings(tmp_path).folders)
    assert set(listed) == {node_type.name for node_type in registry}
    assert [name for name, info in listed.items() if not set(info) >= KEYS] == []


def test_files_are_offered_by_the_names_workflows_use(tmp_path: Path) -> None:
    """Uploaded, bundled and own files are listed; what is no picture or leads out of the folder is not."""
    replies = answers(tmp_path, "/object_info/LoadImage", "/object_info/ONNXComponent", "/object_info/Tokenize")
    images, models, tokenizers = (next(iter(data.values()))["input"]["required"] for _, data in replies)
    assert set(images["image"][0]) >= {"deep/cat.PNG", "hamburger.png"}
    assert {"notes.txt", "link.png"}.isdisjoint(images["image"][0])
    assert set(models["model"][0]) >= {"own.onnx", "emoji-diffusion/unet/model.onnx"}
    assert set(tokenizers["tokenizer"][0]) >= {"emoji-diffusion/tokenizer/tokenizer.json"}


def test_an_unknown_class_is_an_empty_object(tmp_path: Path) -> None:
    """Clients probe for custom nodes this way, names with spaces and brackets encoded."""
    assert answers(tmp_path, "/object_info/Seed%20%28rgthree%29") == [(200, {})]
