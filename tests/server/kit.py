"""A real server in a process of its own, and a few words to speak to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.folders import Folders
from app.graph.node import Ports
from app.server.node_library import NodeLibrary

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "workflows"


@dataclass(slots=True)
class Answer:
    """Status, headers and body of an HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass(slots=True)
class Server:
    """A running server. data: its data folder."""

    port: int
    data: Path
    process: subprocess.Popen[bytes]
    arguments: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """Its address without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """Send one request; a body that is no bytes goes as JSON."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers or {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return Answer(answer.status, dict(answer.headers), answer.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, dict(error.headers), error.read())

    def get(self, path: str) -> Any:
        """Return the JSON of a GET that must succeed."""
        answer = self.call("GET", path)
        assert answer.status == 200, answer.body
        return answer.json

    def post(self, path: str, body: Any = None) -> Any:
        """Return the JSON of a POST that must succeed."""
        answer = self.call("POST", path, {} if body is None else body)
        assert answer.status in (200, 201), answer.body
        return answer.json

    def run(self, document: dict[str, Any], **body: Any) -> dict[str, Any]:
        """Run a document to its end and return the run."""
        run: dict[str, Any] = self.post("/api/runs?wait=true", {"document": document, **body})
        return run

    def worker_pid(self) -> int:
        """Return the process id of the worker."""
        pids = children(self.process.pid)
        assert len(pids) == 1, pids
        return pids[0]

    def kill(self) -> None:
        """End the server as kill -9 does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)


def resident_mb(pid: int) -> float:
    """Return the memory that a process holds, in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def library(folders: Folders) -> NodeLibrary:
    """Return a node library that has no worker to ask."""

    async def ask_ports(class_type: str, literals: Mapping[str, Any]) -> Ports:
        raise AssertionError(f"nobody can tell the ports of {class_type}")

    return NodeLibrary(folders, ask_ports)


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return found


@contextlib.contextmanager
def serving(
    data: Path, *arguments: str, port: int | None = None, environment: dict[str, str] | None = None
) -> Iterator[Server]:
    """Start a server on a data folder, wait until it answers, and end it afterwards as ctrl-C does."""
    server = start(data, *arguments, port=port, environment=environment)
    try:
        wait_for(lambda: answers(server), 30, lambda: server.process.poll() is not None)
        yield server
    finally:
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGINT)
            try:
                server.process.wait(20)
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.process.wait()
                raise


def start(data: Path, *arguments: str, port: int | None = None, environment: dict[str, str] | None = None) -> Server:
    """Start a server and return at once."""
    data.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    command = [sys.executable, "-m", "app.cli", "serve", "--no-browser", "--data", str(data), "--port", str(port)]
    log = (data / "console.log").open("ab")
    with log:
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            env={**os.environ, **(environment or {})},
        )
    return Server(port, data, process, arguments)


def answers(server: Server) -> bool:
    """Return whether a server takes connections."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), 1):
        return True
    return False


def wait_for(is_true: Callable[[], Any], seconds: float = 30, is_lost: Callable[[], bool] = lambda: False) -> Any:
    """Return what a condition gives once it is true. Raises AssertionError when it is not in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not is_lost():
        found = is_true()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s")


def free_port() -> int:
    """Return a TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def template(name: str, **inputs: Any) -> dict[str, Any]:
    """Return a template's document; inputs: `node__input` -> value."""
    document: dict[str, Any] = json.loads((TEMPLATES / f"{name}.json").read_text())
    for place, value in inputs.items():
        node, _, name_of_input = place.rpartition("__")
        document["nodes"][node.lstrip("_")]["inputs"][name_of_input] = value
    return document


def text_document(text: str = "hello") -> dict[str, Any]:
    """Return the smallest document that gives an output."""
    nodes = {
        "1": {"class_type": "Text", "inputs": {"text": text}},
        "2": {"class_type": "ShowText", "inputs": {"text": ["1", "text"]}},
    }
    return {"version": 1, "nodes": nodes}
