"""Submitting over ComfyUI's API: /prompt, /interrupt, /free."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any, cast

from aiohttp import web

from app.graph.document import Workflow
from app.graph.errors import WorkflowError
from app.graph.registry import Registry
from app.server.body import read_json, read_object
from app.server.comfy.prompt_errors import Checked, check_prompt, top_error
from app.server.errors import ApiError
from app.server.keys import NODES, QUEUE
from app.server.storage.schema import NewRun
from app.server.storage.statements import DuplicateRun

routes = web.RouteTableDef()

MAX_PRIORITY = 1e15
SECRETS = ("auth_token_comfy_org", "api_key_comfy_org")
"""Keys of extra_data that ComfyUI hands to its own services; nobody here needs them, so they are not stored."""


@routes.get("/prompt")
async def get_prompt(request: web.Request) -> web.Response:
    """Say how long the queue is. 200 {"exec_info": {"queue_remaining": int}}."""
    return web.json_response({"exec_info": {"queue_remaining": sum(request.app[QUEUE].counts)}})


@routes.post("/prompt")
async def post_prompt(request: web.Request) -> web.Response:
    """Queue a prompt. 200 {"prompt_id", "number", "node_errors"}; 400 {"error", "node_errors"}."""
    body = await _body(request)
    priority = _priority(body.get("number"))
    prompt_id, refusal = _prompt_id(body)
    if refusal is not None:
        return _refused(refusal)
    registry = await _registry(request, body.get("prompt"))
    targets = body.get("partial_execution_targets")
    wanted = [str(target) for target in targets] if isinstance(targets, list) else None
    checked = await asyncio.to_thread(check_prompt, body.get("prompt"), registry, wanted)
    if checked.error is not None:
        return _refused(checked.error, checked.node_errors)
    try:
        stored = await request.app[QUEUE].submit(_new_run(prompt_id, body, checked, priority))
    except DuplicateRun:
        details = "a run with this id is in the queue or in the history; omit it to let the server generate one"
        return _refused(top_error("invalid_prompt_id", "prompt_id is in use", details))
    return web.json_response({"prompt_id": stored.id, "number": stored.priority, "node_errors": checked.node_errors})


@routes.post("/interrupt")
async def interrupt(request: web.Request) -> web.Response:
    """End what runs, or only the run with `prompt_id`. 200 {}."""
    prompt_id = (await read_object(request)).get("prompt_id")
    request.app[QUEUE].interrupt(str(prompt_id) if prompt_id else None)
    return web.json_response({})


@routes.post("/free")
async def free(request: web.Request) -> web.Response:
    """Unload models, and forget cached outputs too with `free_memory`. 200 {}."""
    body = await read_object(request)
    unload, memory = bool(body.get("unload_models")), bool(body.get("free_memory"))
    request.app[QUEUE].home.free(unload_models=unload, free_memory=memory)
    return web.json_response({})


async def _body(request: web.Request) -> dict[str, Any]:
    """Return the body's object; anything else counts as one without a prompt. Raises ApiError when it is no JSON."""
    data = await read_json(request)
    return data if isinstance(data, dict) else {}


async def _registry(request: web.Request, prompt: Any) -> Registry:
    library = request.app[NODES]
    try:
        return await library.registry_for(Workflow.parse({"nodes": prompt}))
    except WorkflowError:
        return await library.registry()


def _prompt_id(body: dict[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """Return the run's id, the client's own if it gives one, and why that is refused."""
    given = body.get("prompt_id")
    if given is None:
        return str(uuid.uuid4()), None
    try:
        is_canonical = isinstance(given, str) and str(uuid.UUID(given)) == given
    except ValueError:
        is_canonical = False
    if is_canonical:
        return given, None
    details = (
        "prompt_id must be a UUID string in canonical lowercase hyphenated form; omit it to let the server generate one"
    )
    return "", top_error("invalid_prompt_id", "prompt_id must be a valid UUID", details)


def _refused(error: dict[str, Any], node_errors: dict[str, Any] | None = None) -> web.Response:
    return web.json_response({"error": error, "node_errors": node_errors or {}}, status=400)


def _new_run(prompt_id: str, body: dict[str, Any], checked: Checked, priority: float | None) -> NewRun:
    client_id = body.get("client_id")
    given = body.get("extra_data")
    extra_data = {key: value for key, value in given.items() if key not in SECRETS} if isinstance(given, dict) else {}
    created = time.time()
    if client_id is not None:
        extra_data["client_id"] = client_id
    extra_data["create_time"] = int(created * 1000)
    return NewRun(
        prompt_id,
        checked.workflow.to_json(),
        source="comfy",
        client_id=None if client_id is None else str(client_id),
        prompt=checked.prompt,
        extra_data=extra_data,
        targets=checked.outputs,
        priority=priority,
        front=bool(body.get("front")),
        created=created,
    )


def _priority(number: Any) -> float | None:
    """Return the client's own priority. Raises ApiError for one that is no finite number."""
    if number is None:
        return None
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if not is_number or not abs(number) <= MAX_PRIORITY:  # NaN is neither less nor more
        accepted = f"a number of at most {MAX_PRIORITY:.0e} either way"
        raise ApiError(400, f"found number {str(number)[:60]!r}, accepted {accepted}; leave it out", "bad_number")
    return cast("float", number)
