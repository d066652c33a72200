"""Health and metrics."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from aiohttp import web

from app.server.keys import METRICS, QUEUE

routes = web.RouteTableDef()


def program_version() -> str:
    """Return the installed version."""
    try:
        return version("ortloom")
    except PackageNotFoundError:
        return "unknown"


@routes.get("/health")
async def health(request: web.Request) -> web.Response:
    """Say that the server answers; needs no token and tells nothing else. 200 {"status": "ok", "version"}."""
    return web.json_response({"status": "ok", "version": program_version()})


@routes.get("/metrics")
async def metrics(request: web.Request) -> web.Response:
    """Return counters for Prometheus. 200 text."""
    text = request.app[METRICS].text(request.app[QUEUE])
    return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
