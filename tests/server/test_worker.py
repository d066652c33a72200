"""The local home of a worker, without a server around it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.worker.exits import exit_sentence
from app.worker.frames import FrameError, pack, read_async
from app.worker.local import Limits, LocalWorker
from app.worker.settings import Job, WorkerSettings
from tests.server.fault_kit import NODES, fault
from tests.server.kit import text_document


@dataclass
class Listener:
    """Remembers what a worker's home tells."""

    ready: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    died: list[tuple[str, str, str]] = field(default_factory=list)

    def worker_ready(self, node_types: Sequence[Mapping[str, Any]], extensions: Sequence[Mapping[str, Any]]) -> None:
        """See WorkerListener."""
        self.ready.set()

    def worker_events(self, run: str, events: Sequence[dict[str, Any]], blob: bytes) -> None:
        """See WorkerListener."""

    def worker_ended(self, record: dict[str, Any]) -> None:
        """See WorkerListener."""
        self.ended.put_nowait(record)

    def worker_died(self, sentence: str, run: str, node: str) -> None:
        """See WorkerListener."""
        self.ready.clear()
        self.died.append((sentence, run, node))
        self.ended.put_nowait({})

    def worker_stats(self, stats: Mapping[str, Any]) -> None:
        """See WorkerListener."""


def test_a_worker_that_says_nothing_is_ended_by_the_watchdog(tmp_path: Path) -> None:
    """A call that holds the interpreter's lock stops even the heartbeat; the next job runs on a new worker."""

    async def work() -> list[tuple[str, str, str]]:
        settings = WorkerSettings((), (), str(tmp_path / "out"), str(tmp_path / "temp"), NODES)
        home = LocalWorker(settings, Limits(watchdog_s=3), tmp_path / "worker.log")
        listener = Listener()
        await home.start(listener)
        await asyncio.wait_for(listener.ready.wait(), 60)
        home.submit(Job("1", fault("hold")))
        assert await asyncio.wait_for(listener.ended.get(), 30) == {}
        await asyncio.wait_for(listener.ready.wait(), 60)
        home.submit(Job("2", text_document()))
        assert (await asyncio.wait_for(listener.ended.get(), 30))["status"] == "done"
        await home.close()
        return listener.died

    ((sentence, run, node),) = asyncio.run(work())
    assert (run, node) == ("1", "1")
    assert "hung and said nothing for 3 s" in sentence


@pytest.mark.parametrize(
    ("code", "part"),
    [
        (-9, "SIGKILL (signal 9): most often because memory ran out"),
        (-7, "SIGBUS"),
        (0, "exit code 0"),
        (-63, "signal 63"),
    ],
)
def test_an_exit_is_told_in_a_sentence(code: int, part: str) -> None:
    assert part in exit_sentence(code)


def test_nonsense_on_the_pipe_is_no_frame() -> None:
    async def read(data: bytes) -> Any:
        stream = asyncio.StreamReader()
        stream.feed_data(data)
        stream.feed_eof()
        return await read_async(stream)

    assert asyncio.run(read(pack({"type": "x"}, [b"ab", b"c"]))) == ({"type": "x"}, b"abc")
    with pytest.raises(FrameError):
        asyncio.run(read(b"this is no frame at all, whatever it may be"))
    with pytest.raises(FrameError):
        asyncio.run(read(b"\x02\x00\x00\x00\x00\x00\x00\x00[]"))
    with pytest.raises(asyncio.IncompleteReadError):
        asyncio.run(read(pack({"type": "x"})[:-1]))
