"""Runs: create, list, get, cancel, retry, delete; and the queue's pause."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import Any, cast

from aiohttp import web

from app.graph.comfy import read_any
from app.graph.errors import WorkflowError
from app.server.body import read_object
from app.server.errors import ApiError, problem_json
from app.server.judgement import judge
from app.server.keys import ENDS, NODES, QUEUE, RUNS, SETTINGS
from app.server.run_json import run_json
from app.server.run_requests import RunRequest, submit, wait_seconds
from app.server.storage.schema import State, StoredRun
from app.server.workflow_store import WorkflowStore, read_template

routes = web.RouteTableDef()

STATES = ("queued", "running", "done", "failed", "cancelled")
ORDERS = ("newest", "oldest", "longest", "shortest")
MAX_PAGE = 1_000


@routes.post("/api/runs")
async def create_run(request: web.Request) -> web.Response:
    """Queue a run of the body's document. 201 run; 200 with `?wait=` when it has ended; 422 problems."""
    wanted = RunRequest.parse(await read_object(request))
    return await _answer(request, await submit(request.app, wanted))


@routes.post("/api/workflows/{name:.+}/run")
async def run_workflow(request: web.Request) -> web.Response:
    """Run a saved workflow or template, inputs changed by `set`. 201 or 200 as POST /api/runs; 404 unknown name."""
    name = request.match_info["name"]
    document = await asyncio.to_thread(_saved, WorkflowStore(request.app[SETTINGS].workflows), name)
    wanted = RunRequest.parse(await read_object(request), read_any(document), name)
    return await _answer(request, await submit(request.app, wanted))


@routes.post("/api/check")
async def check_document(request: web.Request) -> web.Response:
    """Say everything that keeps a document from running, and which loops it has. 200 {"errors", "loops"}."""
    try:
        wanted = RunRequest.parse(await read_object(request))
    except WorkflowError as error:
        return web.json_response({"errors": list(map(problem_json, error.problems)), "loops": []})
    found = await judge(request.app[NODES], wanted.workflow, wanted.targets)
    return web.json_response({"errors": list(map(problem_json, found.problems)), "loops": found.loops})


@routes.get("/api/runs")
async def list_runs(request: web.Request) -> web.Response:
    """List runs, newest first, by `text`, `node_type`, `state`, `order`. 200 {"runs", "total"}; 400 bad query."""
    query = request.query
    states = [state for state in query.get("state", "").split(",") if state]
    order = query.get("order", "newest")
    if unknown := [state for state in states if state not in STATES]:
        raise ApiError(400, f"found state {unknown[0][:40]!r}, accepted one of {', '.join(STATES)}; choose one")
    if order not in ORDERS:
        raise ApiError(400, f"found order {order[:40]!r}, accepted one of {', '.join(ORDERS)}; choose one")
    limit, offset = _whole(request, "limit", 100, 1, MAX_PAGE), _whole(request, "offset", 0, 0, 2**53)
    runs, total = await request.app[RUNS].search(
        query.get("text", ""),
        query.get("node_type") or None,
        cast("list[State]", states) or None,
        limit,
        offset,
        order,  # type: ignore[arg-type]
    )
    active = request.app[QUEUE].active
    return web.json_response({"runs": [run_json(run, active) for run in runs], "total": total})


@routes.get("/api/runs/{run_id}")
async def get_run(request: web.Request) -> web.Response:
    """Return a run with its document, times and results; `?wait=` waits for its end. 200 run; 404 unknown."""
    run = await _stored(request)
    seconds = wait_seconds(request)
    if seconds is not None and run.ended is None:
        run = await _when_ended(request, run, seconds)
    return web.json_response(run_json(run, request.app[QUEUE].active, whole=True))


@routes.delete("/api/runs/{run_id}")
async def delete_run(request: web.Request) -> web.Response:
    """Forget a run that has ended or waits; its files stay. 204; 404 unknown; 409 it runs."""
    run = await _stored(request)
    deleted = await request.app[QUEUE].delete_queued([run.id]) or await request.app[RUNS].delete_ended([run.id])
    if not deleted:
        raise ApiError(409, f"found run {run.id}, which runs; cancel it first with POST /api/runs/ID/cancel", "running")
    return web.Response(status=204)


@routes.post("/api/runs/{run_id}/cancel")
async def cancel_run(request: web.Request) -> web.Response:
    """End a run that waits or runs. 200 {"cancelled": bool}, false when it had ended; 404 unknown."""
    run = await _stored(request)
    return web.json_response({"cancelled": await request.app[QUEUE].cancel(run.id)})


@routes.post("/api/runs/{run_id}/retry")
async def retry_run(request: web.Request) -> web.Response:
    """Queue a run's document again, inputs changed by `set`. 201 or 200 as POST /api/runs; 404 unknown; 422."""
    run = await _stored(request)
    body = {"targets": run.targets and list(run.targets), "name": run.name, **await read_object(request)}
    wanted = RunRequest.parse(body, read_any(run.document))
    return await _answer(request, await submit(request.app, wanted))


@routes.get("/api/queue/state")
async def queue_state(request: web.Request) -> web.Response:
    """Tell the queue's length and whether it is paused. 200 {"running", "queued", "paused"}."""
    return _queue_state(request)


@routes.post("/api/queue/pause")
async def pause_queue(request: web.Request) -> web.Response:
    """Start no more queued runs; what runs goes on. 200 as GET /api/queue/state."""
    request.app[QUEUE].pause(paused=True)
    return _queue_state(request)


@routes.post("/api/queue/resume")
async def resume_queue(request: web.Request) -> web.Response:
    """Start queued runs again. 200 as GET /api/queue/state."""
    request.app[QUEUE].pause(paused=False)
    return _queue_state(request)


@routes.post("/api/queue/clear")
async def clear_queue(request: web.Request) -> web.Response:
    """Take every waiting run out of the queue. 200 {"deleted": count}."""
    return web.json_response({"deleted": len(await request.app[QUEUE].clear())})


def _saved(store: WorkflowStore, name: str) -> dict[str, Any]:
    """Return a saved workflow, or the template of that name. Raises ApiError 404."""
    try:
        return store.read(name)[0]
    except ApiError as error:
        if error.status != 404:
            raise
    return read_template(name)


def _queue_state(request: web.Request) -> web.Response:
    queue = request.app[QUEUE]
    running, queued = queue.counts
    return web.json_response({"running": running, "queued": queued, "paused": queue.is_paused})


async def _stored(request: web.Request) -> StoredRun:
    run_id = request.match_info["run_id"]
    run = await request.app[RUNS].get(run_id)
    if run is None:
        raise ApiError(404, f"found no run {run_id[:60]!r}; GET /api/runs lists them", "unknown_run")
    return run


async def _answer(request: web.Request, run: StoredRun) -> web.Response:
    seconds = wait_seconds(request)
    if seconds is None:
        return _json(run_json(run), 201)
    ended = await _when_ended(request, run, seconds)
    return _json(run_json(ended, whole=True), 201 if ended.ended is None else 200)


async def _when_ended(request: web.Request, run: StoredRun, seconds: float) -> StoredRun:
    """Return the run as it is once it has ended, or when the time is up; one that was deleted counts as cancelled."""
    ending = asyncio.create_task(request.app[ENDS].wait(run.id, seconds))
    now = await request.app[RUNS].get(run.id)  # it may have ended before anyone waited
    if now is not None and now.ended is None:
        await ending
        now = await request.app[RUNS].get(run.id)
    ending.cancel()
    return now or replace(run, state="cancelled", ended=time.time())


def _json(data: dict[str, Any], status: int) -> web.Response:
    return web.Response(text=json.dumps(data), status=status, content_type="application/json")


def _whole(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    text = request.query.get(name, str(default))
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise ApiError(400, f"found {name}={text[:40]!r}, accepted {low} to {high}; send a whole number", "bad_option")
    return value
