"""Errors of HTTP routes: one exception, one middleware, one body."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from app.graph.errors import InputError, Problem, WorkflowError
from app.server.storage.database import StorageError

log = logging.getLogger(__name__)


class ApiError(Exception):
    """A request that cannot be answered as asked. status: HTTP status; message: the whole sentence for the user."""

    def __init__(self, status: int, message: str, code: str = "invalid") -> None:
        super().__init__(message)
        self.status = status
        self.problem = Problem(message, code)


def problem_json(problem: Problem) -> dict[str, Any]:
    """Return a problem as clients read it."""
    return {
        "node": problem.node,
        "title": problem.title,
        "input": problem.input,
        "message": problem.message,
        "code": problem.code,
    }


def error_response(status: int, problems: Iterable[Problem]) -> web.Response:
    """Return the one error body of all routes of our own API."""
    return web.json_response({"errors": [problem_json(problem) for problem in problems]}, status=status)


@web.middleware
async def answer_errors(request: web.Request, handler: Any) -> web.StreamResponse:
    """Turn every error into a body with sentences; what nobody foresaw goes to the log and answers 500."""
    try:
        response: web.StreamResponse = await handler(request)
        return response
    except ApiError as error:
        return error_response(error.status, [error.problem])
    except StorageError as error:
        status = 507 if error.code == "database_full" else 503
        return error_response(status, [Problem(str(error), error.code)])
    except WorkflowError as error:
        return error_response(422, error.problems)
    except InputError as error:
        return error_response(422, [Problem(error.message, error.code, input=error.input)])
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return error_response(error.status, [Problem(_http_sentence(request, error), f"http_{error.status}")])
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        message = "the server failed to answer this request; its log has the details, and it goes on running"
        return error_response(500, [Problem(message, "internal")])


def _http_sentence(request: web.Request, error: web.HTTPException) -> str:
    if error.status == 404:
        return f"found no route {request.path!r}; GET /api/openapi.json lists those of this server"
    if error.status == 405:
        allowed = error.headers.get("Allow", "other methods")
        return f"found method {request.method} for {request.path!r}, accepted {allowed}; use one of these"
    if error.status == 413:
        return "found a body larger than this server accepts; send less"
    return error.text or error.reason
