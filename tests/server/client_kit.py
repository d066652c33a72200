"""What tests of the Python client need besides a server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from app.client import RunHandle
from tests.cli.kit import ortloom
from tests.server.kit import template

Result = TypeVar("Result")


def within(seconds: float, work: Coroutine[Any, Any, Result]) -> Result:
    """Return what a coroutine gives; it must come in time."""
    return asyncio.run(asyncio.wait_for(work, seconds))


def slow(steps: int = 400) -> dict[str, Any]:
    """Return a document whose run takes some seconds."""
    return template("text-to-image", _9__steps=steps)


def local_file(folder: Path, name: str, *changes: str) -> Path:
    """Run a template without a server and return the file that it wrote."""
    options = [part for change in changes for part in ("--set", change)]
    result = ortloom("run", name, "--out", folder, *options)
    assert result.code == 0, result.err
    return Path(result.out.splitlines()[0])


def of_steps(events: list[Any]) -> list[int]:
    return [event["step"] for event in events if isinstance(event, dict) and event["type"] == "step_finished"]


async def all_events(run: RunHandle) -> list[Any]:
    return [event async for event in run.events()]


class Cable:
    """A TCP proxy that can be cut. port: where clients connect."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.port = 0

    @contextlib.asynccontextmanager
    async def plugged(self) -> AsyncIterator[Cable]:
        listener = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            listener.close()
            self.cut()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Drop every connection without a farewell."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, back}
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
        self._writers.discard(writer)
