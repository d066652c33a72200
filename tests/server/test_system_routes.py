"""ComfyUI's routes about the machine, models and features, and those that answer an empty form."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from app.server.comfy.system import DEVICE_REPORT, routes
from app.server.errors import answer_errors
from app.server.keys import SETTINGS
from app.server.settings import ServerSettings


def answers(tmp_path: Path, *paths: str, method: str = "GET", report: list[dict[str, Any]] | None = None) -> list[Any]:
    """Return the status and JSON of requests to a server on a data folder."""
    settings = ServerSettings(tmp_path)
    settings.make_folders()

    async def ask() -> list[Any]:
        app = web.Application(middlewares=[answer_errors])
        app[SETTINGS] = settings
        if report is not None:
            app[DEVICE_REPORT] = report
        app.add_routes(routes)
        async with TestClient(TestServer(app)) as client:
            replies = [await client.request(method, path) for path in paths]
            return [(reply.status, await reply.json()) for reply in replies]

    return asyncio.run(ask())


def test_system_stats_hold_every_key_that_clients_read(tmp_path: Path) -> None:
    """Keys: ComfyUI 0.27.1's; memory: what sysconf says; the runtime's version: what its package says."""
    ((status, stats),) = answers(tmp_path, "/system_stats")
    assert status == 200
    assert set(stats["system"]) >= {
        "os", "ram_total", "ram_free", "comfyui_version", "required_frontend_version", "installed_templates_version",
        "required_templates_version", "comfy_package_versions", "python_version", "pytorch_version",
        "embedded_python", "deploy_environment", "argv",
    }  # fmt: skip
    # the kernel's own pages count differently in the two sources, by far less than a hundredth
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert stats["system"]["ram_total"] == pytest.approx(physical, rel=0.01)
    assert 0 < stats["system"]["ram_free"] <= stats["system"]["ram_total"]
    installed = {item.metadata["Name"]: item.version for item in importlib.metadata.distributions()}
    assert stats["system"]["pytorch_version"] in {installed.get("onnxruntime-gpu"), installed.get("onnxruntime")}
    (device,) = stats["devices"]
    assert set(device) == {
        "name", "type", "index", "vram_total", "vram_free", "torch_vram_total", "torch_vram_free",
    }  # fmt: skip
    assert device["index"] == 0


def test_reported_devices_are_told_with_every_key(tmp_path: Path) -> None:
    """What the worker reports wins; an index that is null would break typed clients, so it is counted."""
    report = [{"name": "H200", "type": "cuda", "index": None, "vram_total": 100, "vram_free": 60}, {"index": 7}]
    ((_, stats),) = answers(tmp_path, "/system_stats", report=report)
    first, second = stats["devices"]
    assert first == {
        "name": "H200", "type": "cuda", "index": 0,
        "vram_total": 100, "vram_free": 60, "torch_vram_total": 100, "torch_vram_free": 60,
    }  # fmt: skip
    assert (second["type"], second["index"]) == ("cpu", 7)


def test_models_are_listed_by_folder(tmp_path: Path) -> None:
    """Names of folders, then paths inside one; names that are no folder's, encoded ones too, are 404."""
    unet = tmp_path / "models" / "mine" / "unet"
    unet.mkdir(parents=True)
    (unet / "model.onnx").write_bytes(b"")
    (unet / "readme.txt").write_bytes(b"")
    folders, mine, *missing = answers(
        tmp_path, "/models", "/models/mine", "/models/loras", "/models/%2e%2e", "/models/mine%2Funet", "/models/%00"
    )
    assert folders[0] == 200
    assert set(folders[1]) >= {"mine", "emoji-diffusion"}
    assert mine == (200, ["unet/model.onnx"])
    assert [status for status, _ in missing] == [404] * 4


def test_files_are_listed_newest_first(tmp_path: Path) -> None:
    """`name [kind]`; times are set a second apart. Other kinds are 400 with `error`."""
    ServerSettings(tmp_path).make_folders()
    for age, name in enumerate(["new.png", "mid.png", "old.png"]):
        (tmp_path / "output" / name).write_bytes(b"")
        os.utime(tmp_path / "output" / name, (1000 - age, 1000 - age))
    listed, refused = answers(tmp_path, "/internal/files/output", "/internal/files/secret")
    assert listed == (200, ["new.png [output]", "mid.png [output]", "old.png [output]"])
    assert refused[0] == 400
    assert isinstance(refused[1]["error"], str)


def test_features_are_what_this_server_can_do(tmp_path: Path) -> None:
    """Keys: ComfyUI 0.27.1's."""
    ((_, features),) = answers(tmp_path, "/features")
    assert set(features) == {
        "supports_preview_metadata", "max_upload_size", "extension", "node_replacements", "assets",
    }  # fmt: skip
    assert features["max_upload_size"] == 100 * 1024 * 1024


EMPTY = {
    "/embeddings": [],
    "/extensions": [],
    "/experiment/models": [],
    "/experiment/models/loras": [],
    "/workflow_templates": {},
    "/i18n": {},
    "/global_subgraphs": {},
    "/global_subgraphs/abc": {},
    "/node_replacements": {},
    "/view_metadata/loras?filename=x.safetensors": {},
    "/internal/folder_paths": {},
    "/internal/logs": "",
    "/internal/logs/raw": {"entries": [], "size": {"cols": 80, "rows": 24}},
}


def test_what_has_no_meaning_here_answers_the_empty_form(tmp_path: Path) -> None:
    """Shapes of ComfyUI 0.27.1's answers, with nothing in them; never 404."""
    assert answers(tmp_path, *EMPTY) == [(200, empty) for empty in EMPTY.values()]
    assert answers(tmp_path, "/internal/logs/subscribe", method="PATCH") == [(200, {})]
