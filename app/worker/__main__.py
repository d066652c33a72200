"""`python -m app.worker SETTINGS`: the worker process of the local home; it speaks frames on its stdin and stdout."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from app.engine.engine import Engine
from app.extensions import ExtensionReport, load_extensions
from app.runtime.providers import PROVIDER_BY_DEVICE, choose
from app.worker.frames import pack, read
from app.worker.node_types import node_type_json
from app.worker.settings import WorkerSettings
from app.worker.worker import Worker
from nodes import builtin_registry

log = logging.getLogger(__name__)

NICE = 5
"""A core that is busy with both must answer clients first (runtime.md 3)."""


def main() -> None:
    """Serve until the server closes the pipe, then end at once, whatever runs."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    commands, replies = _take_pipes()
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C is for the server, which ends its worker itself
    settings = WorkerSettings.parse(sys.argv[1])

    def send(header: dict[str, Any], blobs: Sequence[bytes]) -> None:
        try:
            replies.write(pack(header, blobs))
            replies.flush()
        except OSError:
            os._exit(0)

    engine = Engine(builtin_registry(settings.folders), settings.folders, device=settings.device)
    builtin = {node_type.name for node_type in engine.registry}
    extensions = load_extensions(
        engine.registry,
        Path(settings.custom_nodes),
        skip=settings.skip_extensions,
        before=lambda name: send({"type": "loading", "extension": name}, ()),
    )
    worker = Worker(engine, settings, send)
    node_types = [node_type_json(node_type) for node_type in engine.registry if node_type.name not in builtin]
    send({"type": "ready", "pid": os.getpid(), "node_types": node_types, "extensions": _reports(extensions)}, ())
    threading.Thread(target=worker.outbox.run, name="outbox", daemon=True).start()
    threading.Thread(target=worker.work, name="runs", daemon=True).start()
    threading.Thread(target=_warm_up, args=(worker, settings.device), name="warm-up", daemon=True).start()
    while (frame := read(commands)) is not None:
        worker.handle(frame[0])
    os._exit(0)


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Return the pipes to the server; whatever prints from now on goes to stderr: libraries print on stdout."""
    commands, replies = os.dup(0), os.dup(1)

    def close() -> None:  # in what a node forks: the server must hear of the worker's end, not of its children's
        os.close(commands)
        os.close(replies)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=close)
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return os.fdopen(commands, "rb"), os.fdopen(replies, "wb")


def _die_with_parent() -> None:
    """Let the system end this process when the server dies, even inside a call that never looks at the pipe."""
    if hasattr(os, "nice"):
        os.nice(NICE)
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
        try:  # the first to go when memory runs out, before the server
            Path("/proc/self/oom_score_adj").write_text("800")
        except OSError:
            log.debug("oom_score_adj cannot be set here")


def _warm_up(worker: Worker, device: str) -> None:
    """Import what the first run would have to wait for, and find out what components marked auto run on."""
    import PIL.Image  # noqa: F401
    import tokenizers  # noqa: F401

    choice = choose(device)
    kind = next(name for name, provider in PROVIDER_BY_DEVICE.items() if provider == choice.providers[0])
    worker.devices = [{"name": choice.providers[0], "type": kind, "why_not": dict(choice.why_not)}]


def _reports(reports: Sequence[ExtensionReport]) -> list[dict[str, Any]]:
    for report in reports:
        if report.error:
            log.error("extension %s is skipped: %s\n%s", report.name, report.error, report.traceback)
    return [
        {"name": report.name, "node_types": report.node_types, "error": report.error, "traceback": report.traceback}
        for report in reports
    ]


if __name__ == "__main__":
    main()
