"""Exchanges recorded with ComfyUI 0.27.1, and the same ones with a server of ours."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import aiohttp

from tests.server.kit import Server

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
