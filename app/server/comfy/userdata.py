"""What clients keep on the server over ComfyUI's API: /users, /settings, /userdata."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from pathlib import Path
from typing import Any

from aiohttp import web

from app.server.body import read_json, read_object
from app.server.client_paths import inside
from app.server.comfy.uploads import unwritable
from app.server.errors import ApiError
from app.server.file_tree import files_below
from app.server.keys import SETTINGS

routes = web.RouteTableDef()

SETTINGS_FILE = "comfy.settings.json"
MAX_FILES = 10_000
MAX_SETTINGS_BYTES = 4 << 20


@routes.get("/users")
async def get_users(request: web.Request) -> web.Response:
    """Say that there is one user, whose files the server keeps. 200 {"storage", "migrated"}."""
    return web.json_response({"storage": "server", "migrated": True})


@routes.post("/users")
async def add_user(request: web.Request) -> web.Response:
    """Refuse: there is one user. 400 {"error"}."""
    return web.json_response({"error": "found a new user, but this server has a single one; leave it"}, status=400)


@routes.get("/settings")
async def get_settings(request: web.Request) -> web.Response:
    """Return all settings of clients. 200 object."""
    return web.json_response(await asyncio.to_thread(_read_settings, request.app[SETTINGS].user))


@routes.get("/settings/{id}")
async def get_setting(request: web.Request) -> web.Response:
    """Return one setting. 200 value, null when it is not set."""
    settings = await asyncio.to_thread(_read_settings, request.app[SETTINGS].user)
    return web.json_response(settings.get(request.match_info["id"]))


@routes.post("/settings")
async def set_settings(request: web.Request) -> web.Response:
    """Add settings to those there are. 200 {}; 413 too many."""
    return await _change_settings(request, await read_object(request))


@routes.post("/settings/{id}")
async def set_setting(request: web.Request) -> web.Response:
    """Set one setting to the body's JSON. 200 {}; 400 no JSON; 413 too many."""
    return await _change_settings(request, {request.match_info["id"]: await read_json(request)})


@routes.get("/userdata")
async def list_userdata(request: web.Request) -> web.Response:
    """List the files in `dir`, below it too with `recurse`. 200 [...]; 400 no dir; 403 outside; 404 missing."""
    query = request.query
    if not query.get("dir"):
        raise ApiError(400, "found no dir, accepted the name of a folder; send it", "bad_name")
    folder = inside(request.app[SETTINGS].user, query["dir"].strip("/"))
    if not folder.is_dir():
        raise ApiError(404, f"found no folder {query['dir'][:100]!r}; save a file in it first", "file_missing")
    names = await asyncio.to_thread(_names, folder, _is_true(request, "recurse"))
    if _is_true(request, "full_info"):
        return web.json_response([_info(folder, name) for name in names if (folder / name).is_file()])
    if _is_true(request, "split"):
        return web.json_response([[name, *name.split("/")] for name in names])
    return web.json_response(names)


@routes.get("/v2/userdata")
async def list_userdata_v2(request: web.Request) -> web.Response:
    """List what is in `path`, folders first. 200 [{"name", "path", "type", ...}]; 403 outside; 404 missing."""
    root = request.app[SETTINGS].user
    name = request.query.get("path", "").strip("/")
    folder = inside(root, name) if name else root
    if not folder.is_dir():
        raise ApiError(404, f"found no folder {name[:100]!r}; save a file in it first", "file_missing")
    return web.json_response(await asyncio.to_thread(_entries, folder, root))


@routes.get("/userdata/{file:.+}")
async def get_userdata(request: web.Request) -> web.StreamResponse:
    """Return a file. 200; 403 outside; 404 missing."""
    path = _file(request, "file")
    if not path.is_file():
        raise _missing(request.match_info["file"])
    headers = {"Content-Type": "application/octet-stream", "Content-Disposition": "attachment"}
    if path.suffix == ".json":
        headers["Content-Type"] = "application/json; charset=utf-8"
    return web.FileResponse(path, headers=headers)


@routes.post("/userdata/{file:.+}/move/{dest:.+}")
async def move_userdata(request: web.Request) -> web.Response:
    """Rename a file. 200 path or info; 403 outside; 404 missing; 409 `overwrite=false` and taken."""
    source, target = _file(request, "file"), _file(request, "dest")
    if not source.is_file():
        raise _missing(request.match_info["file"])
    _check_free(request, target)

    def move() -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)

    await _written(move)
    return _stored(request, target)


@routes.post("/userdata/{file:.+}")
async def set_userdata(request: web.Request) -> web.Response:
    """Store the body as a file. 200 path or info; 403 outside; 409 `overwrite=false` and taken; 413; 507."""
    path = _file(request, "file")
    _check_free(request, path)
    data = await request.read()
    await _written(lambda: _write(path, data))
    return _stored(request, path)


@routes.delete("/userdata/{file:.+}")
async def delete_userdata(request: web.Request) -> web.Response:
    """Delete a file. 204; 403 outside; 404 missing."""
    path = _file(request, "file")
    if not path.is_file():
        raise _missing(request.match_info["file"])
    await _written(path.unlink)
    return web.Response(status=204)


async def _change_settings(request: web.Request, changes: dict[str, Any]) -> web.Response:
    folder = request.app[SETTINGS].user
    lock = request.app[SETTINGS_LOCK]
    async with lock:
        settings = await asyncio.to_thread(_read_settings, folder)
        data = json.dumps(settings | changes, indent=2).encode()
        if len(data) > MAX_SETTINGS_BYTES:
            message = f"found settings of over {MAX_SETTINGS_BYTES >> 20} MiB in all, accepted less; send fewer"
            raise ApiError(413, message, "too_large")
        await _written(lambda: _write(folder / SETTINGS_FILE, data))
    return web.json_response({})


SETTINGS_LOCK = web.AppKey("settings_lock", asyncio.Lock)


def _read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings; a file that is no JSON object is moved aside."""
    path = folder / SETTINGS_FILE
    try:
        settings = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        settings = None
    if isinstance(settings, dict):
        return settings
    path.replace(path.with_name(f"{SETTINGS_FILE}.broken"))
    return {}


def _file(request: web.Request, key: str) -> Path:
    return inside(request.app[SETTINGS].user, request.match_info[key])


def _missing(name: str) -> ApiError:
    return ApiError(404, f"found no file {name[:100]!r}; GET /userdata?dir=... lists those there are", "file_missing")


def _check_free(request: web.Request, path: Path) -> None:
    if request.query.get("overwrite", "true").lower() == "false" and path.exists():
        raise ApiError(409, "found a file of that name, accepted a free one; choose another name", "name_taken")


def _stored(request: web.Request, path: Path) -> web.Response:
    root = request.app[SETTINGS].user
    name = path.relative_to(root).as_posix()
    return web.json_response(_info(root, name) if _is_true(request, "full_info") else name)


def _is_true(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() in ("true", "1")


async def _written(action: Any) -> None:
    try:
        await asyncio.to_thread(action)
    except OSError as error:
        raise unwritable(error) from None


def _write(path: Path, data: bytes) -> None:
    """Write a file that appears under its name only when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{uuid.uuid4().hex}.part")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _names(folder: Path, recurse: bool) -> list[str]:
    if recurse:
        found, _ = files_below(folder, MAX_FILES)
        return [file.name for file in found]
    with os.scandir(folder) as entries:
        names = [entry.name for _, entry in zip(range(MAX_FILES), entries, strict=False) if entry.is_file()]
    return sorted(name for name in names if not name.endswith(".part"))


def _info(folder: Path, name: str) -> dict[str, Any]:
    stat = (folder / name).stat()
    times = {"modified": int(stat.st_mtime * 1000), "created": int(stat.st_ctime * 1000)}
    return {"path": name, "size": stat.st_size, **times}


def _entries(folder: Path, root: Path) -> list[dict[str, Any]]:
    listed = []
    with os.scandir(folder) as entries:
        for _, entry in zip(range(MAX_FILES), entries, strict=False):
            is_folder = entry.is_dir()
            item: dict[str, Any] = {
                "name": entry.name,
                "path": Path(entry.path).relative_to(root).as_posix(),
                "type": "directory" if is_folder else "file",
            }
            if not is_folder:
                item |= {"size": entry.stat().st_size, "modified": int(entry.stat().st_mtime)}
            listed.append(item)
    return sorted(listed, key=lambda item: (item["type"] != "directory", item["name"]))
