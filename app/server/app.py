"""The server's application: its services, its routes, and what starts and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import uuid
from collections.abc import AsyncIterator

from aiohttp import WSCloseCode, web

from app.server import pages
from app.server.api import events, health, live, nodes, openapi, packages, runs, workflows
from app.server.body import MAX_UPLOAD_BYTES
from app.server.comfy import files, history, object_info, prompt, socket, system, userdata
from app.server.comfy.feed import ComfyFeed
from app.server.errors import answer_errors
from app.server.keys import COMFY, ENDS, FEED, LIVE, METRICS, NODES, QUEUE, RUNS, SETTINGS, SOCKETS, STREAMS
from app.server.live import LiveSessions
from app.server.metrics import Metrics
from app.server.node_library import NodeLibrary
from app.server.outgoing import OpenSockets
from app.server.run_ends import RunEnds
from app.server.run_feed import RunFeed
from app.server.run_queue import RunQueue
from app.server.security import add_headers, guard
from app.server.settings import ServerSettings
from app.server.storage.database import Database
from app.server.storage.runs import RunStore
from app.server.streams import Streams
from app.server.temp_files import TempFiles
from app.worker.home import WorkerHome
from app.worker.local import Limits, LocalWorker
from app.worker.settings import WorkerSettings

COMFY_ROUTES = (prompt, history, socket, object_info, system, files, userdata)
"""Modules whose routes exist bare and under /api, as ComfyUI has them."""
_OLD_TEMP = "temp-old-"
OWN_ROUTES = (pages, runs, workflows, packages, live, events, nodes, health, openapi)


def make_app(settings: ServerSettings, home: WorkerHome | None = None) -> web.Application:
    """Return the application; its folders are made, its database is opened. Raises OSError and StorageError.

    home: where the worker lives; a child process when None.
    """
    _new_temp(settings)
    settings.make_folders()
    app = web.Application(middlewares=[answer_errors, guard(settings)], client_max_size=MAX_UPLOAD_BYTES)
    app.on_response_prepare.append(add_headers)
    database = Database(settings.database)
    store = RunStore(database, settings.keep_runs)
    home = home or local_worker(settings)
    library = NodeLibrary(settings.folders, home.ports)
    queue = RunQueue(store, home, library, paused=settings.paused)
    streams = Streams()
    app[SETTINGS], app[NODES], app[RUNS], app[QUEUE], app[STREAMS] = settings, library, store, queue, streams
    app[COMFY], app[FEED], app[ENDS], app[METRICS] = ComfyFeed(), RunFeed(streams), RunEnds(), Metrics()
    app[SOCKETS], app[userdata.SETTINGS_LOCK] = OpenSockets(), asyncio.Lock()
    app[system.DEVICE_REPORT] = queue.devices
    queue.observers.extend((app[METRICS], app[FEED], app[COMFY], TempFiles(settings.temp)))
    app[LIVE] = LiveSessions(settings, queue, library, store, streams)
    queue.observers.append(app[ENDS])  # last: who waits for an end finds everybody told
    _add_routes(app)

    async def services(app: web.Application) -> AsyncIterator[None]:
        await queue.recover()
        starting = asyncio.create_task(_start(app))
        watching = asyncio.create_task(app[LIVE].watch())
        yield
        for task in (starting, watching):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await queue.close()
        await database.close()

    app.cleanup_ctx.append(services)
    app.on_shutdown.append(_close_sockets)
    return app


def local_worker(settings: ServerSettings) -> LocalWorker:
    """Return the home of a worker that is a child process of this one."""
    folders = settings.folders
    worker = WorkerSettings(
        models=tuple(map(str, folders.models)),
        inputs=tuple(map(str, folders.inputs)),
        output=str(settings.output.absolute()),
        temp=str(settings.temp.absolute()),
        custom_nodes=str(settings.custom_nodes or settings.data / "custom_nodes"),
        device=settings.device,
    )
    memory = settings.memory_bytes or int(0.9 * total_memory())
    limits = Limits(settings.worker_grace_s, settings.watchdog_s, memory)
    return LocalWorker(worker, limits, settings.logs / "worker.log")


def total_memory() -> int:
    """Return this machine's memory in bytes, 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _add_routes(app: web.Application) -> None:
    for module in COMFY_ROUTES:
        app.router.add_routes(module.routes)
        for route in module.routes:
            if isinstance(route, web.RouteDef) and not route.path.startswith("/internal"):
                app.router.add_route(route.method, f"/api{route.path}", route.handler)
    app.router.add_routes(history.jobs)
    for module in OWN_ROUTES:
        app.router.add_routes(module.routes)


async def _start(app: web.Application) -> None:
    """Do what takes long once the server listens: start the worker, load node types, delete old temporary files."""
    await app[QUEUE].start()
    await app[NODES].registry()
    for folder in app[SETTINGS].data.glob(f"{_OLD_TEMP}*"):
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _new_temp(settings: ServerSettings) -> None:
    """Begin with an empty temporary folder; the old one is put aside at once, for deleting it may take long."""
    if settings.temp.exists():
        settings.temp.rename(settings.data / f"{_OLD_TEMP}{uuid.uuid4().hex}")


async def _close_sockets(app: web.Application) -> None:
    sockets = app[SOCKETS]
    for open_socket in tuple(sockets):
        await open_socket.close(code=WSCloseCode.GOING_AWAY, message=b"the server ends")
