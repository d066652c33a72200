"""The model folders over HTTP: packages, signatures, what a workflow lacks."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from app.folders import BUNDLED_MODELS, BUNDLED_WORKFLOWS
from app.server import file_tree
from app.server.api import packages
from app.server.errors import answer_errors
from app.server.keys import NODES, SETTINGS
from app.server.settings import ServerSettings
from tests.server.kit import library

UNET = "emoji-diffusion/unet/model.onnx"
UNICODE = "模型/großes modell.onnx"


def answers(tmp_path: Path, *requests: tuple[str, str] | tuple[str, str, Any], models: tuple[Path, ...] = ()) -> Any:
    """Return status and JSON of (method, path, body) sent to a real server on a data folder."""
    settings = ServerSettings(tmp_path, models=models)
    settings.make_folders()

    async def ask() -> list[tuple[int, Any]]:
        app = web.Application(middlewares=[answer_errors])
        app[SETTINGS], app[NODES] = settings, library(settings.folders)
        app.add_routes(packages.routes)
        found = []
        async with TestClient(TestServer(app)) as client:
            for method, path, *body in requests:
                async with client.request(method, URL(path, encoded=True), json=body[0] if body else None) as reply:
                    found.append((reply.status, json.loads(await reply.text())))
        return found

    return asyncio.run(ask())


def listed(tmp_path: Path, models: tuple[Path, ...] = ()) -> list[dict[str, Any]]:
    """Return the packages that a server lists."""
    ((status, body),) = answers(tmp_path, ("GET", "/api/packages"), models=models)
    assert status == 200
    packages: list[dict[str, Any]] = body["packages"]
    return packages


def put(root: Path, *names: str) -> None:
    """Make files of one byte."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")


def test_bundled_packages_are_told_with_models_and_files(tmp_path: Path) -> None:
    """Names, sizes and times are those of the files in the program's folder; no path on the disk is told."""
    by_name = {package["name"]: package for package in listed(tmp_path)}
    files = {path.relative_to(BUNDLED_MODELS).as_posix(): path.stat() for path in BUNDLED_MODELS.rglob("*.*")}
    diffusion = by_name["emoji-diffusion"]
    assert set(by_name) == {"emoji-diffusion", "tiny-masked-lm"}
    assert diffusion["folder"] == "bundled"
    assert [model["name"] for model in diffusion["models"]] == sorted(
        name for name in files if name.startswith("emoji-diffusion/") and name.endswith(".onnx")
    )
    for entry in [*diffusion["models"], *diffusion["files"]]:
        stat = files[entry["name"]]
        assert entry == {"name": entry["name"], "bytes": stat.st_size, "modified": stat.st_mtime_ns / 1e9}
    assert "emoji-diffusion/tokenizer/tokenizer.json" in [entry["name"] for entry in diffusion["files"]]
    assert str(BUNDLED_MODELS.parent) not in json.dumps(list(by_name.values()))


def test_a_package_is_a_folder_with_models_in_it_or_one_level_below(tmp_path: Path) -> None:
    """Layouts of diffusers, transformers.js and loose files; a folder without models is no package."""
    mine = tmp_path / "mine"
    put(
        mine,
        "loose.onnx", "sd/unet/model.onnx", "sd/unet/model.onnx_data", "sd/model_index.json", "sd/readme.md",
        "llm/onnx/model.onnx", "llm/onnx/deep/er/model.onnx", "llm/merges.txt", "vendor/name/onnx/a.onnx",
        "texts/tokenizer.json", "notes.json", "sd/.hidden/secret.onnx", UNICODE,
    )  # fmt: skip
    found = {
        package["name"]: (
            package["folder"],
            [entry["name"] for entry in package["models"]],
            [entry["name"] for entry in package["files"]],
        )
        for package in listed(tmp_path / "data", (mine,))
        if package["folder"] == "mine"
    }
    assert found == {
        ".": ("mine", ["loose.onnx"], ["notes.json"]),
        "sd": ("mine", ["sd/unet/model.onnx"], ["sd/model_index.json", "sd/unet/model.onnx_data"]),
        "llm": ("mine", ["llm/onnx/deep/er/model.onnx", "llm/onnx/model.onnx"], ["llm/merges.txt"]),
        "vendor/name": ("mine", ["vendor/name/onnx/a.onnx"], []),
        "模型": ("mine", [UNICODE], []),
    }


def test_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """Two folders called models besides the server's own: three labels."""
    folders = (tmp_path / "a/models", tmp_path / "b/models")
    for folder in folders:
        put(folder, "x/m.onnx")
    put(tmp_path / "data/models", "x/m.onnx")
    labels = [package["folder"] for package in listed(tmp_path / "data", folders) if package["name"] == "x"]
    assert len(set(labels)) == 3
    assert all("/" not in label for label in labels)


def test_links_that_circle_or_lead_out_are_not_followed(tmp_path: Path) -> None:
    """Only the real file and the link to it inside of the folder are there."""
    mine = tmp_path / "mine"
    put(mine, "p/real.onnx")
    put(tmp_path, "outside/secret.onnx")
    (mine / "p/same.onnx").symlink_to(mine / "p/real.onnx")
    (mine / "p/circle").symlink_to(mine)
    (mine / "p/self.onnx").symlink_to(mine / "p/self.onnx")
    (mine / "p/secret.onnx").symlink_to(tmp_path / "outside/secret.onnx")
    (mine / "out").symlink_to(tmp_path / "outside")
    (package,) = [package for package in listed(tmp_path / "data", (mine,)) if package["folder"] == "mine"]
    assert [model["name"] for model in package["models"]] == ["p/real.onnx", "p/same.onnx"]


def test_a_folder_of_5000_files_is_listed_in_time(tmp_path: Path) -> None:
    """All of them, in well under the 2 s after which a person wonders; again from memory within the second."""
    mine = tmp_path / "mine" / "many"
    mine.mkdir(parents=True)
    for index in range(5_000):
        (mine / f"{index:04}.onnx").touch()
    start = time.monotonic()
    (package,) = [package for package in listed(tmp_path / "data", (mine.parent,)) if package["name"] == "many"]
    assert [model["name"] for model in package["models"]] == [f"many/{index:04}.onnx" for index in range(5_000)]
    assert time.monotonic() - start < 2


def test_what_is_too_much_is_cut_and_said(tmp_path: Path) -> None:
    """Of ten files nine are looked at; nine folders deep is one too deep. What is left out is told where counted."""
    put(tmp_path, *(f"p/{index}.onnx" for index in range(9)))
    files, is_cut = file_tree.files_below(tmp_path, most=9)
    assert (len(files), is_cut) == (8, True)  # the folder p counts as well
    assert file_tree.files_below(tmp_path, most=10)[1] is False
    put(tmp_path, "1/2/3/4/5/6/7/there", "1/2/3/4/5/6/7/8/not-there")
    assert [file.name for file in file_tree.files_below(tmp_path)[0] if "there" in file.name] == ["1/2/3/4/5/6/7/there"]


def test_a_signature_tells_what_the_onnx_package_reads(tmp_path: Path) -> None:
    """Names, types, shapes, opset and operator counts of the bundled UNet, read by `onnx` itself."""
    ((status, facts),) = answers(tmp_path, ("GET", f"/api/packages/signature?model={UNET}"))
    model = onnx.load(BUNDLED_MODELS / UNET, load_external_data=False)
    weights = {tensor.name for tensor in model.graph.initializer}
    ops: dict[str, int] = {}
    for item in model.graph.node:
        ops[item.op_type] = ops.get(item.op_type, 0) + 1

    def port(value: Any) -> dict[str, Any]:
        tensor = value.type.tensor_type
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        shape = [dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else None) for dim in tensor.shape.dim]
        return {"name": value.name, "dtype": dtype, "shape": shape, "has_default": False}

    assert status == 200
    assert facts["inputs"] == [port(value) for value in model.graph.input if value.name not in weights]
    assert facts["outputs"] == [port(value) for value in model.graph.output]
    assert facts["opsets"] == {item.domain or "ai.onnx": item.version for item in model.opset_import}
    assert facts["ops"] == ops
    assert str(BUNDLED_WORKFLOWS) not in json.dumps(facts)


def test_files_that_are_no_model_are_422(tmp_path: Path) -> None:
    """Cut in half, empty, a text, and one without its weights: each a sentence that names the file, not its place."""
    mine = tmp_path / "mine"
    whole = (BUNDLED_MODELS / UNET).read_bytes()
    put(mine, "p/text.onnx")
    (mine / "p/half.onnx").write_bytes(whole[: len(whole) // 2])
    (mine / "p/empty.onnx").touch()
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) {y = Add(x, w)}'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1, np.float32), "w"))
    onnx.save(model, mine / "p/apart.onnx", save_as_external_data=True, location="apart.data", size_threshold=0)
    (mine / "p/apart.data").unlink()
    names = ["half", "empty", "text", "apart"]
    requests = [("GET", f"/api/packages/signature?model=p/{name}.onnx") for name in names]
    for name, (status, body) in zip(names, answers(tmp_path, *requests, models=(mine,)), strict=True):
        assert status == 422
        assert f"{name}.onnx" in body["errors"][0]["message"]
        assert str(tmp_path) not in json.dumps(body)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("nothing.onnx", 404), ("emoji-diffusion/unet", 404), ("", 400), ("..%2Fsecret.onnx", 403), ("%00", 400),
        ("%2e%2e%2fsecret.onnx", 403), ("%2Fetc%2Fpasswd", 403), ("emoji-diffusion%2F..%2F..%2Fsecret.onnx", 403),
        ("C%3A%5Csecret.onnx", 403), ("NUL", 400), ("out.onnx", 403), ("x" * 300, 400), ("%ED%A0%80", 404),
    ],
)  # fmt: skip
def test_names_that_are_no_model_in_a_model_folder(tmp_path: Path, name: str, status: int) -> None:
    """400, 403 or 404 with a sentence that tells no path of the disk; `out.onnx` is a link to a file outside."""
    put(tmp_path, "data/secret.onnx")
    (tmp_path / "data/models").mkdir()
    (tmp_path / "data/models/out.onnx").symlink_to(tmp_path / "data/secret.onnx")
    ((found, body),) = answers(tmp_path / "data", ("GET", f"/api/packages/signature?model={name}"))
    assert (found, bool(body["errors"][0]["message"])) == (status, True)
    assert str(tmp_path) not in json.dumps(body)


def test_a_bundled_template_lacks_nothing(tmp_path: Path) -> None:
    """Every model, tokenizer, picture and node type of every template comes with the program."""
    documents = [json.loads(path.read_bytes()) for path in BUNDLED_WORKFLOWS.glob("*.json")]
    requests = [("POST", "/api/packages/missing", {"document": document}) for document in documents]
    assert answers(tmp_path, *requests) == [(200, {"models": [], "files": [], "node_types": []})] * len(documents)


def test_what_a_workflow_lacks_is_told_by_node_and_input(tmp_path: Path) -> None:
    """One of each that is missing, a folder where a file must be, wires and names that are not set, which are fine."""
    inputs = {
        "gone": {"class_type": "ONNXComponent", "inputs": {"model": "gone/unet.onnx"}},
        "folder": {"class_type": "ONNXComponent", "inputs": {"model": "emoji-diffusion"}},
        "half": {"class_type": "ONNXComponent", "inputs": {"model": "\ud800.onnx"}},
        "outside": {"class_type": "ONNXComponent", "inputs": {"model": "../../text-to-image.json"}},
        "unset": {"class_type": "ONNXComponent", "inputs": {"model": ""}},
        "odd": {"class_type": "ONNXComponent", "inputs": {"model": 5}},
        "there": {"class_type": "ONNXComponent", "inputs": {"model": UNET}},
        "tokens": {"class_type": "Tokenize", "inputs": {"text": "", "tokenizer": "gone/tokenizer.json"}},
        "tokens there": {"class_type": "Tokenize", "inputs": {"text": "", "tokenizer": "emoji-diffusion/tokenizer"}},
        "picture": {"class_type": "LoadImage", "inputs": {"image": "gone.png"}},
        "wired": {"class_type": "LoadImage", "inputs": {"image": ["1", 0]}},
        "typo": {"class_type": "LoadImagee", "inputs": {}},
    }
    ((status, body),) = answers(tmp_path, ("POST", "/api/packages/missing", {"document": {"nodes": inputs}}))
    (unknown,) = body.pop("node_types")
    assert status == 200
    assert body == {
        "models": [
            {"node": "gone", "input": "model", "name": "gone/unet.onnx"},
            {"node": "folder", "input": "model", "name": "emoji-diffusion"},
            {"node": "half", "input": "model", "name": "\ud800.onnx"},
            {"node": "outside", "input": "model", "name": "../../text-to-image.json"},
        ],
        "files": [
            {"node": "tokens", "input": "tokenizer", "name": "gone/tokenizer.json", "kind": "tokenizer"},
            {"node": "picture", "input": "image", "name": "gone.png", "kind": "image"},
        ],
    }
    assert (unknown["node"], unknown["class_type"]) == ("typo", "LoadImagee")
    assert "did you mean LoadImage " in unknown["sentence"]


def test_no_workflow_lacks_a_document(tmp_path: Path) -> None:
    """422 for what is no workflow, with a sentence."""
    replies = answers(tmp_path, *(("POST", "/api/packages/missing", body) for body in ({}, {"document": []})))
    assert [status for status, _ in replies] == [422, 422]


def test_thousands_of_unknown_types_are_told_in_time(tmp_path: Path) -> None:
    """Searching near names for each would take minutes for a large hostile document; all are told all the same."""
    nodes = {str(index): {"class_type": f"LoadImage{index:04}"} for index in range(5_000)}
    start = time.monotonic()
    ((_, body),) = answers(tmp_path, ("POST", "/api/packages/missing", {"document": {"nodes": nodes}}))
    assert len(body["node_types"]) == 5_000
    assert all(entry["sentence"] for entry in body["node_types"])
    assert time.monotonic() - start < 5


def test_folders_that_cannot_be_read_count_as_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model folder that is not there, and one that the system refuses to list."""
    mine = tmp_path / "mine"
    put(mine, "p/a.onnx", "q/b.onnx")
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("/q"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = listed(tmp_path / "data", (mine, tmp_path / "nowhere"))
    assert [package["name"] for package in found if package["folder"] == "mine"] == ["p"]
