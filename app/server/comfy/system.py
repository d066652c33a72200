"""ComfyUI's routes about the machine, its models and features, and empty answers to what has no meaning here."""

from __future__ import annotations

import asyncio
import sys
from functools import cache
from pathlib import Path
from typing import Any

from aiohttp import web

from app.server.body import MAX_UPLOAD_BYTES
from app.server.comfy.memory import Memory, memory
from app.server.comfy.model_names import model_folders, models_in, newest_files
from app.server.errors import ApiError
from app.server.keys import SETTINGS

routes = web.RouteTableDef()

DEVICE_REPORT = web.AppKey("device_report", list[dict[str, Any]])
"""The worker's devices, filled in place when it reports them: any of the keys of an entry of /system_stats."""

PROTOCOL_VERSION = "0.27.1"
"""The version of ComfyUI whose protocol is spoken; clients compare it."""

FEATURES: dict[str, Any] = {
    "supports_preview_metadata": True,
    "max_upload_size": MAX_UPLOAD_BYTES,
    "extension": {"manager": {"supports_v4": False}},
    "node_replacements": True,
    "assets": False,
}
"""What the server can do, told by /features and to every WebSocket that asks."""

_DISTRIBUTIONS = ("onnxruntime-gpu", "onnxruntime", "onnxruntime-directml", "onnxruntime-openvino")


@routes.get("/system_stats")
async def system_stats(request: web.Request) -> web.Response:
    """Tell versions, memory and devices. 200."""
    ram = await asyncio.to_thread(memory)
    runtime = await asyncio.to_thread(runtime_version)
    system = {
        "os": sys.platform,
        "ram_total": ram.total,
        "ram_free": ram.free,
        "comfyui_version": PROTOCOL_VERSION,
        "required_frontend_version": "",
        "installed_templates_version": "",
        "required_templates_version": "",
        "comfy_package_versions": [],
        "python_version": sys.version,
        "pytorch_version": runtime,
        "embedded_python": False,
        "deploy_environment": "local",
        "argv": ["ortloom"],  # not the real ones: they hold the token
    }
    report = request.app.get(DEVICE_REPORT) or [{}]
    devices = [_device(index, entry, ram) for index, entry in enumerate(report)]
    return web.json_response({"system": system, "devices": devices})


def _device(index: int, entry: dict[str, Any], ram: Memory) -> dict[str, Any]:
    """Return one device with every key; typed clients fail on an index that is null, as ComfyUI gives it for a CPU."""
    device = {"name": "cpu", "type": "cpu", "vram_total": ram.total, "vram_free": ram.free} | entry
    device["index"] = entry["index"] if isinstance(entry.get("index"), int) else index
    return {"torch_vram_total": device["vram_total"], "torch_vram_free": device["vram_free"]} | device


@cache
def runtime_version() -> str:
    """Return ONNX Runtime's version, read from its package without importing it; empty when it is not installed."""
    import importlib.metadata

    for name in _DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


@routes.get("/features")
async def features(request: web.Request) -> web.Response:
    """Tell what the server can do. 200."""
    return web.json_response(FEATURES)


@routes.get("/models")
async def list_model_folders(request: web.Request) -> web.Response:
    """List the folders inside the model folders. 200 [name]."""
    return web.json_response(list(await _model_folders(request)))


@routes.get("/models/{folder}")
async def list_models(request: web.Request) -> web.Response:
    """List the models in a folder. 200 [path relative to it]; 404 no such folder."""
    folders = await _model_folders(request)
    name = request.match_info["folder"]
    if name not in folders:
        raise ApiError(404, f"found no model folder {name!r}; GET /models lists them", "no_such_folder")
    return web.json_response(await asyncio.to_thread(models_in, folders[name]))


async def _model_folders(request: web.Request) -> dict[str, list[Path]]:
    return await asyncio.to_thread(model_folders, request.app[SETTINGS].folders)


@routes.get("/internal/files/{kind}")
async def list_files(request: web.Request) -> web.Response:
    """List the files in a folder. 200 ["name [kind]"], newest first; 400 {"error"} unless input, output or temp."""
    kind = request.match_info["kind"]
    settings = request.app[SETTINGS]
    folder = {"input": settings.input, "output": settings.output, "temp": settings.temp}.get(kind)
    if folder is None:
        return web.json_response({"error": f"found {kind!r}, accepted input, output or temp"}, status=400)
    return web.json_response([f"{name} [{kind}]" for name in await asyncio.to_thread(newest_files, folder)])


@routes.get("/embeddings")
@routes.get("/extensions")
@routes.get("/experiment/models")
@routes.get("/experiment/models/{folder}")
async def no_list(request: web.Request) -> web.Response:
    """Answer that there are none. 200 []."""
    return web.json_response([])


@routes.get("/workflow_templates")
@routes.get("/i18n")
@routes.get("/global_subgraphs")
@routes.get("/global_subgraphs/{subgraph}")
@routes.get("/node_replacements")
@routes.get("/view_metadata/{folder}")
@routes.get("/internal/folder_paths")
@routes.patch("/internal/logs/subscribe")
async def no_entries(request: web.Request) -> web.Response:
    """Answer that there is nothing. 200 {}."""
    return web.json_response({})


@routes.get("/internal/logs")
async def no_log(request: web.Request) -> web.Response:
    """Answer with an empty log: the server's own is for its terminal, it holds paths. 200 text in JSON."""
    return web.json_response("")


@routes.get("/internal/logs/raw")
async def no_log_entries(request: web.Request) -> web.Response:
    """Answer with an empty log. 200 {"entries", "size"}."""
    return web.json_response({"entries": [], "size": {"cols": 80, "rows": 24}})
