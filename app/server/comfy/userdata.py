"""What clients keep on the server over ComfyUI's API: /users, /settings, /userdata."""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, TypeVar

from aiohttp import web

from app.graph.document import decode
from app.graph.errors import WorkflowError
from app.server.body import read_json, read_object
from app.server.client_paths import inside
from app.server.comfy.files import file_response
from app.server.errors import ApiError
from app.server.keys import SETTINGS
from app.server.user_files import changing, write_whole

routes = web.RouteTableDef()

SETTINGS_FILE = "comfy.settings.json"
SETTINGS_LOCK = web.AppKey("settings_lock", asyncio.Lock)
"""Held from reading the settings until the changed ones are stored."""
MAX_FILES = 10_000
"""Most files and folders that one listing looks at."""
MAX_FILE_BYTES = 64 << 20
MAX_SETTINGS_BYTES = 4 << 20

T = TypeVar("T")


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
    """Add settings to those there are. 200 {}; 400 no JSON object; 413 too many; 507."""
    return await _change_settings(request, await read_object(request))


@routes.post("/settings/{id}")
async def set_setting(request: web.Request) -> web.Response:
    """Set one setting to the body's JSON. 200 {}; 400 no JSON; 413 too many; 507."""
    return await _change_settings(request, {request.match_info["id"]: await read_json(request)})


@routes.get("/userdata")
async def list_userdata(request: web.Request) -> web.Response:
    """List the files in `dir`, below it too with `recurse`. 200 [...]; 400 no dir; 403 outside; 404 missing.

    A file is its path relative to `dir`; with `split` the list of that and its parts; with `full_info` an object.
    """
    name = request.query.get("dir", "")
    if not name:
        raise ApiError(400, "found no dir, accepted the name of a folder, or a dot for all; send it", "bad_name")
    folder = _folder(request, "" if name == "." else name)
    found = await asyncio.to_thread(_found, folder, _is_true(request, "recurse"))
    files = [(name, stat) for name, stat in found if not S_ISDIR(stat.st_mode)]
    if _is_true(request, "full_info"):
        return web.json_response([_info(name, stat) for name, stat in files])
    if _is_true(request, "split"):
        return web.json_response([[name, *name.split("/")] for name, _ in files])
    return web.json_response([name for name, _ in files])


@routes.get("/v2/userdata")
async def list_userdata_v2(request: web.Request) -> web.Response:
    """List what is below `path`, folders first. 200 [{"name", "path", "type", ...}]; 403 outside; 404 missing."""
    folder = _folder(request, request.query.get("path", ""))
    found = await asyncio.to_thread(_found, folder, True)
    inner = folder.relative_to(request.app[SETTINGS].user)
    entries = [_entry((inner / name).as_posix(), stat) for name, stat in found]
    return web.json_response(sorted(entries, key=lambda entry: (entry["type"] != "directory", entry["name"].lower())))


@routes.get("/userdata/{file:.+}")
async def get_userdata(request: web.Request) -> web.StreamResponse:
    """Return a file. 200; 400 bad name; 403 outside; 404 missing."""
    path = _file(request, "file")
    if not path.is_file():
        raise _missing(request.match_info["file"])
    return file_response(path)


@routes.post("/userdata/{file:.+}/move/{dest:.+}")
async def move_userdata(request: web.Request) -> web.Response:
    """Rename a file. 200 path or info; 400 bad name; 403 outside; 404 missing; 409 `overwrite=false` and taken; 507."""
    source, target = _file(request, "file"), _file(request, "dest")

    def move() -> Any:
        if not source.is_file():
            raise _missing(request.match_info["file"])
        _check_free(request, target)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(source, target)
        return _told(request, target)

    return web.json_response(await _changing(target, move))


@routes.post("/userdata/{file:.+}")
async def set_userdata(request: web.Request) -> web.Response:
    """Store the body as a file.

    200 path or info; 400 bad name; 403 outside; 409 `overwrite=false` and taken; 413 too large; 507.
    """
    path = _file(request, "file")
    data = await _body(request)

    def store() -> Any:
        _check_free(request, path)
        write_whole(path, data)
        return _told(request, path)

    return web.json_response(await _changing(path, store))


@routes.delete("/userdata/{file:.+}")
async def delete_userdata(request: web.Request) -> web.Response:
    """Delete a file. 204; 400 bad name; 403 outside; 404 missing; 507."""
    path = _file(request, "file")

    def delete() -> None:
        if not path.is_file():
            raise _missing(request.match_info["file"])
        path.unlink()

    await _changing(path, delete)
    return web.Response(status=204)


async def _change_settings(request: web.Request, changes: dict[str, Any]) -> web.Response:
    file = request.app[SETTINGS].user / SETTINGS_FILE
    async with request.app[SETTINGS_LOCK]:
        settings = await asyncio.to_thread(_read_settings, file.parent)
        data = json.dumps(settings | changes, indent=2).encode()
        if len(data) > MAX_SETTINGS_BYTES:
            message = f"found settings of over {MAX_SETTINGS_BYTES >> 20} MiB in all, accepted less; send fewer"
            raise ApiError(413, message, "too_large")
        await _changing(file, lambda: _write_settings(file, data))
    return web.json_response({})


def _read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings; none when their file is broken, so that clients can start."""
    try:
        return _parse_settings(folder / SETTINGS_FILE) or {}
    except OSError as error:
        message = f"found settings that cannot be read ({error.strerror}), accepted a file; check its permissions"
        raise ApiError(507, message, "unreadable") from None


def _parse_settings(path: Path) -> dict[str, Any] | None:
    """Return what is in the file of settings, None when that is broken. Raises OSError."""
    try:
        if path.stat().st_size > MAX_SETTINGS_BYTES:
            return None
        settings = decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except WorkflowError:
        return None
    return settings if isinstance(settings, dict) else None


def _write_settings(path: Path, data: bytes) -> None:
    """Store settings; a broken file is kept under another name for whoever can mend it."""
    if _parse_settings(path) is None:
        os.replace(path, path.with_name(f"{SETTINGS_FILE}.broken"))
    write_whole(path, data)


def _file(request: web.Request, key: str) -> Path:
    return inside(request.app[SETTINGS].user, request.match_info[key])


def _folder(request: web.Request, name: str) -> Path:
    """Return the folder of that name, all of a user's files for an empty one. Raises ApiError 400, 403 and 404."""
    root = request.app[SETTINGS].user
    folder = inside(root, name.removesuffix("/") or name) if name else root
    if not folder.is_dir():
        raise ApiError(404, f"found no folder {name[:100]!r}, accepted one that is there; save a file in it first")
    return folder


def _missing(name: str) -> ApiError:
    message = f"found no file {name[:100]!r}, accepted one that is there; GET /userdata?dir=... lists them"
    return ApiError(404, message, "file_missing")


def _check_free(request: web.Request, path: Path) -> None:
    if request.query.get("overwrite", "true").lower() == "false" and path.exists():
        raise ApiError(409, "found a file of that name, accepted a free one; choose another name", "name_taken")


def _told(request: web.Request, path: Path) -> Any:
    """Return what a client is told of a stored file: its path, or an object with `full_info`. Raises OSError."""
    name = path.relative_to(request.app[SETTINGS].user).as_posix()
    return _info(name, path.stat()) if _is_true(request, "full_info") else name


def _is_true(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() in ("true", "1")


async def _body(request: web.Request) -> bytes:
    """Return the body of a request. Raises ApiError 413."""
    data = bytearray()
    is_too_large = (request.content_length or 0) > MAX_FILE_BYTES
    while not is_too_large and (chunk := await request.content.readany()):
        data += chunk
        is_too_large = len(data) > MAX_FILE_BYTES
    if is_too_large:
        limit = MAX_FILE_BYTES >> 20
        raise ApiError(413, f"found a file of more than {limit} MiB, accepted less; send a smaller one", "too_large")
    return bytes(data)


async def _changing(path: Path, action: Callable[[], T]) -> T:
    """Return what an action on a file does, one at a time and in a thread. Raises ApiError 400, 409 and 507."""

    def act() -> T:
        with changing(path.name):
            return action()

    return await asyncio.to_thread(act)


def _found(folder: Path, recurse: bool) -> list[tuple[str, os.stat_result]]:
    """Return files and folders in a folder by name, at most `MAX_FILES`; hidden ones and links are left out."""
    return sorted(islice(_walk(folder, recurse), MAX_FILES))


def _walk(folder: Path, recurse: bool) -> Iterator[tuple[str, os.stat_result]]:
    """Yield what is in a folder, the upper ones first; what cannot be read, or goes away meanwhile, is left out."""
    folders = deque([(folder, "")])
    while folders:
        current, prefix = folders.popleft()
        with suppress(OSError), os.scandir(current) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    stat = entry.stat(follow_symlinks=False)
                    if entry.name.startswith(".") or not (S_ISREG(stat.st_mode) or S_ISDIR(stat.st_mode)):
                        continue
                    if recurse and S_ISDIR(stat.st_mode):
                        folders.append((current / entry.name, f"{prefix}{entry.name}/"))
                    yield f"{prefix}{entry.name}", stat


def _info(name: str, stat: os.stat_result) -> dict[str, Any]:
    """Return path, size in bytes, and times in milliseconds since 1970."""
    times = {"modified": int(stat.st_mtime * 1000), "created": int(stat.st_ctime * 1000)}
    return {"path": name, "size": stat.st_size, **times}


def _entry(path: str, stat: os.stat_result) -> dict[str, Any]:
    """Return a file or folder as the second version of the listing has it; modified: seconds since 1970."""
    name = path.rpartition("/")[2]
    if S_ISDIR(stat.st_mode):
        return {"name": name, "path": path, "type": "directory"}
    return {"name": name, "path": path, "type": "file", "size": stat.st_size, "modified": stat.st_mtime}
