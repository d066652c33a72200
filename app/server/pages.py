"""The page at /: a working example to turn knobs on."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

routes = web.RouteTableDef()

_FOLDER = Path(__file__).parent / "page"


@routes.get("/")
async def get_page(request: web.Request) -> web.FileResponse:
    """Return the page. 200."""
    return web.FileResponse(_FOLDER / "index.html", headers={"Cache-Control": "no-cache"})


@routes.get("/{name:page\\.(?:js|css)}")
async def get_asset(request: web.Request) -> web.FileResponse:
    """Return a script or style of the page. 200."""
    return web.FileResponse(_FOLDER / request.match_info["name"], headers={"Cache-Control": "no-cache"})
