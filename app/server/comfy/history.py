"""Queue and history over ComfyUI's API: /queue, /history, /api/jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from app.server.body import read_object
from app.server.comfy.entries import history_entry, job_entry, job_state, queue_item
from app.server.errors import ApiError
from app.server.keys import QUEUE, RUNS

routes = web.RouteTableDef()
jobs = web.RouteTableDef()
"""Routes that exist under /api only."""

_ORDERS = {
    ("created_at", "desc"): "newest",
    ("created_at", "asc"): "oldest",
    ("execution_duration", "desc"): "longest",
    ("execution_duration", "asc"): "shortest",
}
MAX_JOBS = 1_000


@routes.get("/queue")
async def get_queue(request: web.Request) -> web.Response:
    """List what runs and what waits, in order. 200 {"queue_running": [item], "queue_pending": [item]}."""
    store = request.app[RUNS]
    queued = await store.queued()
    running = await store.running()  # read last: a run whose turn comes in between would be missing from both
    ids = {run.id for run in running}
    pending = [queue_item(run) for run in queued if run.id not in ids]
    return web.json_response({"queue_running": list(map(queue_item, running)), "queue_pending": pending})


@routes.post("/queue")
async def post_queue(request: web.Request) -> web.Response:
    """Take waiting runs out: all with `clear`, those in `delete`. 200 {}."""
    body = await read_object(request)
    queue = request.app[QUEUE]
    if body.get("clear"):
        await queue.clear()
    await queue.delete_queued(_ids(body.get("delete")))
    return web.json_response({})


@routes.get("/history")
async def get_history(request: web.Request) -> web.Response:
    """Return ended runs, `max_items` of them from `offset` on. 200 {prompt_id: entry}; 400 for no number."""
    max_items, offset = _number(request, "max_items"), _number(request, "offset")
    runs = await request.app[RUNS].history(max_items, offset)
    return web.json_response({run.id: history_entry(run) for run in runs})


@routes.get("/history/{prompt_id}")
async def get_history_entry(request: web.Request) -> web.Response:
    """Return one ended run. 200 {prompt_id: entry}, or {} when there is none."""
    run = await request.app[RUNS].get(request.match_info["prompt_id"])
    return web.json_response({} if run is None or run.ended is None else {run.id: history_entry(run)})


@routes.post("/history")
async def post_history(request: web.Request) -> web.Response:
    """Forget ended runs: all with `clear`, those in `delete`. 200 {}."""
    body = await read_object(request)
    store = request.app[RUNS]
    if body.get("clear"):
        await store.clear_history()
    await store.delete_ended(_ids(body.get("delete")))
    return web.json_response({})


@jobs.get("/api/jobs")
async def get_jobs(request: web.Request) -> web.Response:
    """List runs in every state. 200 {"jobs", "pagination"}; 400 {"error"}."""
    query = request.query
    states = [job_state(name.strip()) for name in query.get("status", "").split(",") if name.strip()]
    order = _ORDERS.get((query.get("sort_by", "created_at"), query.get("sort_order", "desc")))
    try:
        limit, offset = int(query.get("limit", MAX_JOBS)), int(query.get("offset", 0))
    except ValueError:
        limit = offset = -1
    if None in states or order is None or limit < 1 or offset < 0:
        accepted = (
            "accepted: status of pending, in_progress, completed, failed, cancelled; sort_by of created_at, "
            "execution_duration; sort_order of asc, desc; limit of at least 1; offset of at least 0"
        )
        return web.json_response({"error": f"found a query that cannot be answered; {accepted}"}, status=400)
    runs, total = await request.app[RUNS].search(
        state=[state for state in states if state is not None] or None,
        limit=min(limit, MAX_JOBS),
        offset=offset,
        order=order,  # type: ignore[arg-type]
        workflow_id=query.get("workflow_id"),
    )
    asked = int(query["limit"]) if "limit" in query else None
    more = {"offset": offset, "limit": asked, "total": total, "has_more": offset + len(runs) < total}
    return web.json_response({"jobs": [job_entry(run) for run in runs], "pagination": more})


@jobs.get("/api/jobs/{job_id}")
async def get_job(request: web.Request) -> web.Response:
    """Return one run with its results and workflow. 200 job; 404 {"error"}."""
    run = await request.app[RUNS].get(request.match_info["job_id"])
    if run is None:
        return web.json_response({"error": "found no job with this id; GET /api/jobs lists them"}, status=404)
    return web.json_response(job_entry(run, whole=True))


@jobs.post("/api/jobs/{job_id}/cancel")
async def cancel_job(request: web.Request) -> web.Response:
    """End a run that waits or runs. 200 {"cancelled": bool}."""
    return web.json_response({"cancelled": await request.app[QUEUE].cancel(request.match_info["job_id"])})


@jobs.post("/api/jobs/cancel")
async def cancel_jobs(request: web.Request) -> web.Response:
    """End several runs. 200 {"cancelled": whether any was ended}; 400 {"error", "invalid_ids"}."""
    body = await read_object(request)
    job_ids = body.get("job_ids")
    if not isinstance(job_ids, list):
        return web.json_response({"error": "found no list job_ids, accepted one of job ids; send it"}, status=400)
    invalid = [job_id for job_id in job_ids if not isinstance(job_id, str)]
    if invalid:
        error = {"error": "found ids that are no texts, accepted job ids; send those", "invalid_ids": invalid}
        return web.json_response(error, status=400)
    ended = [await request.app[QUEUE].cancel(job_id) for job_id in job_ids]
    return web.json_response({"cancelled": any(ended)})


def _ids(given: Any) -> Sequence[str]:
    return [item for item in given if isinstance(item, str)] if isinstance(given, list) else []


def _number(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ApiError(400, f"found {name}={text[:60]!r}, accepted a whole number; leave it out") from None
