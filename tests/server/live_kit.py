"""A client that pulls at a live session and notes when each change acts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import aiohttp


@dataclass(slots=True)
class Watched:
    """What a live session did.

    events: everything heard, `at` added, seconds. sent: by revision, when its change was sent.
    step_at: by revision, when the first step that shows it (or a later one) began.
    """

    live_id: str
    events: list[dict[str, Any]] = field(default_factory=list)
    sent: dict[int, float] = field(default_factory=dict)
    step_at: dict[int, float] = field(default_factory=dict)

    @property
    def states(self) -> list[dict[str, Any]]:
        """The session's states in order."""
        return [event for event in self.events if event["type"] == "live.state"]

    @property
    def latencies(self) -> list[float]:
        """Seconds from each change to the start of the first step that uses it."""
        return [self.step_at[revision] - sent for revision, sent in self.sent.items() if revision in self.step_at]

    def most_runs_at_once(self) -> int:
        """Return how many runs overlapped at most, by the worker's own events."""
        running: set[str] = set()
        most = 0
        for event in self.events:
            if event["type"] == "started":
                running.add(event["run"])
            elif event["type"] in ("done", "failed", "cancelled"):
                running.discard(event["run"])
            most = max(most, len(running))
        return most


async def pull(url: str, document: dict[str, Any], changes: Sequence[dict[str, Any]], seconds: float) -> Watched:
    """Open a session, let it settle, send the changes evenly over some seconds, wait until the last has settled."""
    async with aiohttp.ClientSession() as http, http.ws_connect(f"{url}/api/events?client_id=puller") as socket:
        await socket.send_json({"type": "live.open", "ref": 0, "document": document})
        watched = Watched("")
        hearing = asyncio.create_task(_hear(socket, watched))
        await _until(lambda: watched.live_id and _is_kept(watched, 1))
        started = perf_counter()
        for index, change in enumerate(changes):
            await asyncio.sleep(max(0.0, started + index * seconds / len(changes) - perf_counter()))
            watched.sent[index + 2] = perf_counter()
            message = {"type": "live.set", "ref": index + 1, "live_id": watched.live_id, "set": change}
            await socket.send_json(message)
        await _until(lambda: _is_kept(watched, len(changes) + 1))
        hearing.cancel()
        return watched


def _is_kept(watched: Watched, revision: int) -> bool:
    shown = watched.states[-1].get("shown") if watched.states else None
    return bool(shown and shown["revision"] == revision and shown["kept"])


async def _hear(socket: aiohttp.ClientWebSocketResponse, watched: Watched) -> None:
    async for frame in socket:
        if frame.type is not aiohttp.WSMsgType.TEXT:
            continue
        now = perf_counter()
        for event in json.loads(frame.data)["events"]:
            assert event["type"] != "error", event
            event["at"] = now
            watched.events.append(event)
            if event["type"] == "live.state":
                watched.live_id = event["live_id"]
            elif event["type"] == "step_finished":
                began = now - event["seconds"]
                for revision in range(event["revision"], 0, -1):
                    if revision in watched.step_at:
                        break
                    watched.step_at[revision] = began


async def _until(is_true: Any, seconds: float = 60) -> None:
    end = perf_counter() + seconds
    while not is_true():
        assert perf_counter() < end, f"not within {seconds} s"
        await asyncio.sleep(0.01)
