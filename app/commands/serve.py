"""`ortloom serve`: start the server and open the editor."""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import signal
import socket
import sys
import threading
import webbrowser
from pathlib import Path

from platformdirs import user_data_path

from app.server.settings import ServerSettings, is_loopback

_EVERYWHERE = ("0.0.0.0", "::", "")


def main(options: argparse.Namespace) -> int:
    """Serve until ctrl-C or SIGTERM; returns 0, or 1 with a sentence on stderr when it cannot start."""
    from app.runtime.providers import DEVICES
    from app.server.storage.data_lock import DataFolderInUse, DataLock
    from app.server.storage.database import StorageError

    if options.device not in DEVICES:
        return _refuse(f"found --device {options.device!r}, accepted one of {', '.join(DEVICES)}; choose one of them")
    settings = settings_of(options)
    for folder in settings.models:
        if not folder.is_dir():
            return _refuse(f"found no folder {str(folder)!r}; give one that exists with --models")
    try:
        settings.data.mkdir(parents=True, exist_ok=True)
        lock = DataLock(settings.data)
        lock.acquire(settings.host, settings.port)
    except DataFolderInUse as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"found data folder {settings.data} that cannot be written ({error.strerror}); choose another")
    try:
        return asyncio.run(_serve(settings, opens_browser=not options.no_browser))
    except StorageError as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(_why_not_listening(settings, error))
    finally:
        lock.release()


def settings_of(options: argparse.Namespace) -> ServerSettings:
    """Return the settings that the command line says."""
    return ServerSettings(
        data=(options.data or user_data_path("ortloom", appauthor=False)).absolute(),
        host=options.host,
        port=options.port,
        models=tuple(folder.absolute() for folder in options.models),
        token=options.token or os.environ.get("ORTLOOM_TOKEN") or None,
        paused=options.paused,
        device=options.device,
        custom_nodes=options.custom_nodes,
        memory_bytes=int(options.memory * 2**30),
    )


async def _serve(settings: ServerSettings, *, opens_browser: bool) -> int:
    told = _told_to_end()
    from aiohttp import web

    from app.server.app import make_app

    app = make_app(settings)
    _start_log(settings.logs)
    runner = web.AppRunner(app, shutdown_timeout=2.0, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host, settings.port)
        await site.start()
        address = address_of(settings, runner.addresses[0][1])
        _announce(settings, address)
        if opens_browser:
            threading.Thread(target=_open_browser, args=(address,), daemon=True).start()
        await told.wait()
        print("\nending; what waits in the queue stays there", flush=True)
    finally:
        await runner.cleanup()
    return 0


def address_of(settings: ServerSettings, port: int) -> str:
    """Return the address to open in a browser, with the token if there is one."""
    host = "127.0.0.1" if settings.host in _EVERYWHERE else settings.host
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + (f"?token={settings.token}" if settings.token else "")


def _announce(settings: ServerSettings, address: str) -> None:
    print(f"Ortloom is at {address}")
    if settings.host in _EVERYWHERE:
        print(f"from other machines: {address.replace('127.0.0.1', socket.gethostname(), 1)}")
    print(f"data: {settings.data}", flush=True)
    if not is_loopback(settings.host) and settings.token is None:
        message = (
            f"found --host {settings.host} without a token: only /health is answered, because anyone who reaches this "
            "address could run workflows; start with --token T"
        )
        print(message, file=sys.stderr, flush=True)


def _told_to_end() -> asyncio.Event:
    """Return what is set by ctrl-C and SIGTERM, from now on: neither may meet a server half started."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, told.set)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(told.set))
    return told


def _open_browser(address: str) -> None:
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    try:
        webbrowser.open(address)
    except webbrowser.Error:
        logging.getLogger(__name__).info("no browser to open")


def _start_log(folder: Path) -> None:
    handler = logging.FileHandler(folder / "server.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def _why_not_listening(settings: ServerSettings, error: OSError) -> str:
    from app.server.port_owner import port_sentence

    if error.errno == errno.EADDRINUSE:
        return port_sentence(settings.host, settings.port)
    where = f"{settings.host} port {settings.port}"
    return f"found {where} where this program cannot listen ({error.strerror}); choose others with --host and --port"


def _refuse(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 1
