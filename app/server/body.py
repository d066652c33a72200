"""Reading request bodies within limits."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from app.graph.document import decode
from app.graph.errors import WorkflowError
from app.server.errors import ApiError

MAX_UPLOAD_BYTES = 100 << 20
"""Largest request body, uploads included."""

SMALL_BYTES = 1 << 20
"""Larger JSON is read on another thread: 64 MiB of it would keep everyone else waiting for a second."""

_STATUS = {"too_large": 413}


async def read_json(request: web.Request) -> Any:
    """Return the JSON of a request's body, whatever its content type. Raises ApiError 400, or 413 when too large."""
    data = await request.read()
    try:
        return decode(data) if len(data) <= SMALL_BYTES else await asyncio.to_thread(decode, data)
    except WorkflowError as error:
        problem = error.problems[0]
        raise ApiError(_STATUS.get(problem.code, 400), problem.message, problem.code) from None


async def read_object(request: web.Request) -> dict[str, Any]:
    """Return the JSON object of a request's body; an empty body is an empty object. Raises ApiError 400 or 413."""
    if not request.body_exists or not (await request.read()).strip():
        return {}
    data = await read_json(request)
    if not isinstance(data, dict):
        message = f"found a {type(data).__name__} as the body, accepted a JSON object; wrap it in one"
        raise ApiError(400, message, "shape")
    return data
